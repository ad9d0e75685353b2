"""What is wrong is named, nothing is half written, and no trajectory is lost."""

import asyncio
import gc
import itertools
import random
import resource
import signal
import subprocess
import sys

import pytest
from pydantic import ValidationError

import art
from art.errors import BackendError, ConflictError, NoTrainingDataError
from art.logs.parquet import read_trajectory_groups_parquet


@pytest.fixture
def model(tmp_path):
    return art.Model(name="m", project="p", base_path=str(tmp_path / "art"))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: art.Trajectory(reward="much"), "reward"),
        (lambda: art.Trajectory(messages_and_choices=["hello"]), "messages_and_choices"),
        (lambda: art.Trajectory(metrics={"a": "b"}), "metrics"),
        (lambda: art.TrajectoryGroup([art.Trajectory(), "no trajectory"]), "trajectories"),
        (lambda: art.TrainableModel(name="m", project="p"), "base_model"),
        (lambda: art.TrainConfig(learning_rate="fast"), "learning_rate"),
        (lambda: art.TrainSFTConfig(batch_size="some"), "batch_size"),
    ],
)
def test_wrong_types_name_the_field(build, named):
    with pytest.raises(ValidationError, match=named):
        build()


@pytest.mark.parametrize("kind", [art.TrainConfig, art.TrainSFTConfig])
def test_an_option_that_there_is_not_is_an_error(kind):
    with pytest.raises(ValidationError, match="learning_rte"):
        kind(learning_rte=1e-3)


def test_a_reward_under_a_misspelt_name_is_told():
    with pytest.warns(UserWarning, match=r"Trajectory has no field rewrd; left out\. Fields: .*reward,"):
        assert art.Trajectory(rewrd=1.0).reward == 0.0


async def test_options_rewards_and_models_that_cannot_be_trained(service, tmp_path, make_choice):
    backend = art.RemoteBackend(service.url, "service-key")
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    sampled = [{"role": "user", "content": "q"}, make_choice()]
    with pytest.raises(ValueError, match=r"await model\.register\(backend\)"):
        await pupil.train([])
    await pupil.register(backend)
    for broken, error, expected in [
        ({"learning_rte": 1e-3}, TypeError, "unknown options: learning_rte"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate"),
        ({"epsilon": "wide"}, ValueError, "epsilon"),
    ]:
        with pytest.raises(error, match=expected):
            await backend.train(pupil, [art.TrajectoryGroup([])], **broken)
    for reward in (float("nan"), float("inf")):
        group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=sampled, reward=reward)])
        with pytest.raises(NoTrainingDataError, match=r"reward of group 0, trajectory 0 is (nan|inf)"):
            await backend.train(pupil, [group])
    assert service.train_requests == [], "nothing was sent"


async def test_what_is_no_run_of_its_own_is_refused_before_anything_is_sent(service, tmp_path, make_choice):
    backend = art.RemoteBackend(service.url, "service-key")
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await pupil.register(backend)

    turns = itertools.count()

    def run(reward=0.0, **fields):
        return art.Trajectory(messages_and_choices=[make_choice(turn=f"t{next(turns)}")], reward=reward, **fields)

    twice, wordy, odd = run(), run(), run()
    wordy.reward, odd.metrics["turns"] = "good", "many"
    for groups, error, expected in [
        ([run(), run()], TypeError, r"item 0 is a Trajectory, not an art.TrajectoryGroup.*\[art\.TrajectoryGroup"),
        (
            [art.TrajectoryGroup([run(), twice]), art.TrajectoryGroup([twice])],
            NoTrainingDataError,
            "group 1, trajectory 0 is the same run as group 0, trajectory 1",
        ),
        (
            [art.TrajectoryGroup([run(rollout_id="r"), run(rollout_id="r")])],
            NoTrainingDataError,
            "trajectory 1 is the same run as",
        ),
        ([art.TrajectoryGroup([run(), wordy])], TypeError, r"The reward of group 0, trajectory 1 is 'good' \(str\)"),
        ([art.TrajectoryGroup([odd])], TypeError, r"The metric 'turns' of group 0, trajectory 0 is 'many' \(str\)"),
    ]:
        with pytest.raises(error, match=expected):
            await backend.train(pupil, groups)
    assert service.train_requests == [], "nothing was sent"


@pytest.mark.parametrize("field", ["name", "project"])
async def test_names_that_cannot_be_part_of_a_path_are_told_with_one_that_can(service, tmp_path, field):
    names = {"name": "m", "project": "p", field: "my agent/v2"}
    pupil = art.TrainableModel(base_model="b", base_path=str(tmp_path), **names)
    with art.LocalBackend(path=tmp_path / "art") as local:
        for backend in (art.RemoteBackend(service.url, "service-key"), local):
            with pytest.raises(ValueError, match=f"^{field}='my agent/v2': use letters, .*such as 'my-agent-v2'"):
                await pupil.register(backend)
    assert list((tmp_path / "art").iterdir()) == []


async def test_settings_of_an_adapter_are_named(service, tmp_path):
    config = {"peft_args": {"r": 0}, "init_args": {"max_seq_length": "long"}}
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path), _internal_config=config)
    with pytest.raises(ValueError, match=r"^Model 'm' cannot be registered: lora\.rank: .*; max_sequence_length: "):
        await pupil.register(art.RemoteBackend(service.url, "service-key"))


async def test_what_is_no_number_is_named_and_nothing_is_logged(model, read_history):
    odd = art.Trajectory()
    odd.reward = None
    for arguments, named in [
        ({"metrics": {"accuracy": "high"}}, r"The metric 'accuracy' is 'high' \(str\); it must be a number"),
        ({"trajectories": [odd]}, "The reward of group 0, trajectory 0 is None"),
    ]:
        with pytest.raises(TypeError, match=named):
            await model.log(**arguments, step=1)
    assert not model._path("history.jsonl").exists()
    await model.log([art.Trajectory(reward=r) for r in (1e308, -1e308)], metrics={"accuracy": True}, step=1)
    (row,) = read_history(model)
    assert row["val/accuracy"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"metrics": {1: 1.0}}, TypeError, "The metric 1 must have a string as its name, not int"),
        (
            {"metrics": {"a": 1.0}, "split": "../elsewhere"},
            ValueError,
            r"split='\.\./elsewhere' cannot name a directory",
        ),
        ({"metrics": {"a": 1.0}, "split": "half \ud83d"}, ValueError, "split=.* cannot name a directory"),
        ({"metrics": {"a": 1.0}, "split": ""}, ValueError, "split='' cannot name a directory"),
        ({"metrics": {"a": 1.0}, "split": None}, TypeError, "split=None must be a word"),
        ({"metrics": {"a": 1.0}, "step": "one"}, TypeError, "step='one' must be a whole number, not str"),
        ({"trajectories": [art.Trajectory()], "step": 0.5}, TypeError, "step=0.5 must be a whole number"),
    ],
)
async def test_what_cannot_be_logged_under_that_name_is_told(model, tmp_path, arguments, error, named):
    with pytest.raises(error, match=named):
        await model.log(**{"step": 1, **arguments})
    assert list(tmp_path.iterdir()) == []


async def test_lines_and_messages_that_are_none_are_named_and_nothing_is_logged(model, tmp_path):
    loud, odd, nested = art.Trajectory(), art.Trajectory(), art.Trajectory()
    loud.logs.append(5)
    odd.messages_and_choices.append("hello")
    nested.additional_histories = [art.trajectories.History(messages_and_choices=[])]
    nested.additional_histories[0].messages_and_choices.append(None)
    group = art.TrajectoryGroup([art.Trajectory()])
    group.logs.append(b"bytes")
    for given, named in [
        (art.TrajectoryGroup([art.Trajectory(), loud]), r"Log line 0 of group 0, trajectory 1 is 5 \(int\)"),
        (
            art.TrajectoryGroup([odd]),
            "Message 0 of group 0, trajectory 0 is 'hello' .*must be a message dict or a Choice",
        ),
        (art.TrajectoryGroup([nested]), "Message 0 of group 0, trajectory 0 is None"),
        (group, r"Log line 0 of group 0 is b'bytes' \(bytes\); it must be text"),
    ]:
        with pytest.raises(TypeError, match=named):
            await model.log([given], step=1)
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_json_cannot_hold_is_named_and_the_old_one_stays(model):
    model.overwrite_state({"a": 1})
    path = model._path("state.json")
    for store in (model.overwrite_state, model.merge_state):
        with pytest.raises(TypeError, match=rf"{path} can only hold JSON values: .*object.*The file is unchanged"):
            store({"a": object()})
        with pytest.raises(TypeError, match=rf"{path} must hold a dict, not list"):
            store([1])
    assert model.read_state() == {"a": 1}


async def test_half_a_character_stops_no_training(service, tmp_path, make_choice, read_history):
    """As a page of the web may hold it, cut in the middle."""
    half = "cut \ud83d"
    backend = art.RemoteBackend(service.url, "service-key")
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await pupil.register(backend)

    async def play(model, scenario):
        choice = make_choice(turn=f"t{scenario['n']}", content=half)
        scenario["n"] += 1
        metadata = {"scenario_id": half, half: half}
        return art.Trajectory(messages_and_choices=[choice], reward=scenario["n"], metadata=metadata, logs=[half])

    await art.train(pupil, play, [{"n": 0}], steps=1, groups_per_step=1, group_size=2, show_progress=False)
    (request,) = service.train_requests
    assert request.groups[0].scenario == "cut \\ud83d"
    assert read_history(pupil)[0]["train/reward"] == 1.5


async def test_what_is_gathered_must_be_something_to_await(recwarn):
    async def gives(what):
        return what

    for call, named in [
        (
            lambda: art.gather_trajectory_groups([gives(1), art.TrajectoryGroup([])]),
            "groups: item 1 is a TrajectoryGroup",
        ),
        (
            lambda: art.gather_trajectories([gives(1), art.Trajectory()]),
            "trajectories: item 1 is a Trajectory, which cannot be awaited",
        ),
        (lambda: art.gather_trajectory_groups([gives(5)], max_exceptions=9), "returned int, not a TrajectoryGroup"),
        (lambda: art.gather_trajectories([gives(5)], max_exceptions=9), "returned int, not a Trajectory or a list"),
        (
            lambda: art.gather_trajectories([gives(["text"])], max_exceptions=9),
            "returned str, not a Trajectory or a list",
        ),
    ]:
        with pytest.raises(TypeError, match=named):
            await call()
    gc.collect()
    assert [w for w in recwarn if "never awaited" in str(w.message)] == []


async def test_configs_trajectories_and_backends_of_another_type_are_named(service, tmp_path):
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    with pytest.raises(TypeError, match=r"such as art\.LocalBackend\(\), not with None"):
        await pupil.register(None)
    await pupil.register(art.RemoteBackend(service.url, "service-key"))
    with pytest.raises(TypeError, match=r"config must be an art\.TrainSFTConfig, not dict"):
        await pupil.train_sft([], {"learning_rate": 1e-3})
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(TypeError, match=r"config must be an art\.TrainConfig, not dict"),
    ):
        await pupil.train([], {"learning_rate": 1e-3})
    with pytest.raises(TypeError, match=r"trajectories: item 1 is a dict, not an art\.Trajectory"):
        lesson = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        await pupil.train_sft([art.Trajectory(messages_and_choices=lesson), {"messages": lesson}])
    backend = art.RemoteBackend(service.url, "service-key")
    with pytest.raises(TypeError, match=r"^model is a str, not an art\.TrainableModel"):
        await backend.train("m", [])
    with pytest.raises(TypeError, match=r"^trajectory_groups must be a list of art\.TrajectoryGroup, not NoneType"):
        await backend.train(pupil, None)
    with pytest.raises(TypeError, match=r"^group is a list, not an art\.TrajectoryGroup"):
        await art.rewards.ruler_score_group([])
    with pytest.raises(ValueError, match=r"^url must look like http://host:port or https://host/prefix, not 5"):
        art.RemoteBackend(5)
    assert service.train_requests == [], "nothing was sent"


async def test_two_trainings_of_one_model_at_once(service, tmp_path, make_choice):
    """The second is refused at once, whether it runs here or in another process; the first goes on."""
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await pupil.register(art.RemoteBackend(service.url, "service-key"))
    turn = 0

    async def play(model, scenario):
        nonlocal turn
        turn += 1
        mine = turn
        if mine == 1:
            with pytest.raises(ConflictError, match=r"'m' of project 'p' is already being trained.*another name"):
                await train()
        return art.Trajectory(messages_and_choices=[make_choice(turn=f"t{mine}")], reward=mine)

    def train():
        return art.train(pupil, play, ["a"], steps=1, groups_per_step=1, group_size=2, show_progress=False)

    assert (await train()).step == 1
    assert len(service.train_requests) == 1


async def test_nan_and_infinity_are_left_out_of_the_history(model, read_history):
    group = art.TrajectoryGroup([art.Trajectory(reward=float("nan"), metrics={"odd": float("inf"), "fine": 2})])
    await model.log([group], split="train", step=1)
    (row,) = read_history(model)
    assert "train/reward" not in row
    assert "train/odd" not in row
    assert row["train/fine"] == 2


async def test_empty_groups_are_logged(model, read_history):
    await model.log([art.TrajectoryGroup([])], split="train", step=1)
    assert read_history(model)[0]["data/step_num_groups_submitted"] == 1


async def test_a_full_disk_loses_nothing_and_leaves_nothing_half_written(model, read_history, tmp_path):
    small = [art.TrajectoryGroup([art.Trajectory(reward=1.0, logs=["small"])])]
    chance = random.Random(0)
    noise = "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(100_000))
    large = [art.TrajectoryGroup([art.Trajectory(reward=2.0, logs=[noise])])]
    await model.log(small, split="train", step=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # a write beyond fails as on a full disk
    try:
        with pytest.raises(OSError, match="large"):
            await model.log(large, split="train", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    await model.log(large, split="train", step=2)  # the trajectories are still there to be logged
    assert [row["train/reward"] for row in read_history(model)] == [1.0, 2.0]
    (logged,) = read_trajectory_groups_parquet(model._path("trajectories", "train", "0002.parquet"))
    assert logged.trajectories[0].logs == [noise]


async def test_a_row_that_could_not_be_written_is_not_counted(model, read_history):
    await model.log(metrics={"costs/train/judge": 1.0}, split="train", step=1)
    history, state = model._path("history.jsonl"), model._path("state.json")
    history.write_text(history.read_text() + "\n" * 60_000)
    before = state.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=r"Logging step 2 of model 'm' failed: .*Free space.*/models/m'"):
                await model.log(metrics={"costs/train/judge": 2.0}, split="train", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert state.read_bytes() == before
    history.write_text(history.read_text().strip() + "\n")
    await model.log(metrics={"costs/train/judge": 2.0}, split="train", step=2)
    assert [row["costs/cum/train/judge"] for row in read_history(model)] == [1.0, 3.0]


async def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    model = art.Model(name="m", project="p", base_path=str(tmp_path / "file"))
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        await model.log(metrics={"a": 1.0}, step=0)
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        art.LocalBackend(path=tmp_path / "file" / "below")


async def test_a_model_nobody_registered_is_named(service, tmp_path):
    service.refuse = (404, {"error": {"code": "not_found", "message": "No model 'm' is registered in project 'p'."}})
    pupil = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    with pytest.raises(BackendError, match="No model 'm' is registered"):
        await asyncio.wait_for(art.RemoteBackend(service.url, "service-key")._get_step(pupil), 20)


def test_a_path_without_permission_is_named_and_nothing_is_lost(tmp_path):
    """As nobody, since root may write everywhere."""
    code = f"""
import asyncio, os, art
from art.logs import parquet as trajectory_logging
trajectory_logging.schema()  # loaded while files may be read
model = art.Model(name="m", project="p", base_path={str(tmp_path / "art")!r})
group = art.TrajectoryGroup([art.Trajectory(reward=1.0)])
model.overwrite_state({{}})
os.chmod({str(tmp_path / "art/p/models/m")!r}, 0o555)
if os.getuid() == 0:
    os.setuid(65534)
for log in (model.log([group], step=1), model.log(metrics={{"a": 1.0}}, step=1)):
    try:
        asyncio.run(log)
    except PermissionError as error:
        print(error)
print(group.trajectories[0].reward)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *refused, reward = done.stdout.splitlines()
    assert len(refused) == 2
    assert all("Permission denied" in line and str(tmp_path / "art/p/models/m") in line for line in refused)
    assert reward == "1.0"
    assert sorted(path.name for path in (tmp_path / "art/p/models/m").iterdir() if path.suffix != ".lock") == [
        "state.json"
    ]
