import json
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pydantic import BaseModel

import art
from art.backend import MetricSink
from art.logs.parquet import read_trajectory_groups_parquet
from art.metrics import MetricsBuilder


class Config(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    rounds: int = 3
    thing: object = None


class Recorder:
    """A backend of few words, as users write them for tests."""

    def __init__(self, step=0, metrics=None):
        self.step, self.metrics = step, metrics
        self.kept = []

    async def register(self, model):
        pass

    async def _prepare_backend_for_training(self, model, config):
        return "http://127.0.0.1:1/v1", "key"

    async def _get_step(self, model):
        return self.step

    async def _delete_checkpoint_files(self, model, steps):
        self.kept.append(steps)

    def _model_inference_name(self, model, step=None):
        return model.name if step is None else f"{model.name}@{step}"

    async def train(self, model, groups, **options):
        return art.TrainResult(self.step, dict(self.metrics or {}))

    async def train_sft(self, model, trajectories, config=None, **options):
        return None if self.metrics is None else art.TrainResult(self.step, dict(self.metrics))


class Priced(Recorder, MetricSink):
    """One whose devices cost something."""

    def __init__(self, rate=None, **fields):
        super().__init__(**fields)
        self.rate = rate

    async def record_metrics(self, model, metrics, *, split, step):
        pass

    def automatic_gpu_cost_per_hour_usd(self, model):
        return self.rate


@pytest.fixture
def model(tmp_path):
    return art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))


def row_keys(row):
    return set(row) - {"training_step", "time/wall_clock_sec", "step", "recorded_at"}


def test_constructor():
    config = Config()
    model = art.Model(name="m", project="p", config=config, unknown=1, id="i", run_id="r")
    assert (model.config, model.id, model.run_id, model.base_path, model.trainable) == (config, "i", "r", ".art", False)
    assert model.config is config
    with pytest.raises(ValueError, match="object has no field"):
        model.undeclared = 1
    trained = art.TrainableModel(name="m", project="p", base_model="b", _internal_config={"trainer_gpu_ids": [0]})
    assert trained.trainable is True
    assert trained.model_dump()["_internal_config"] == {"trainer_gpu_ids": [0]}
    assert model.safe_model_dump()["config"] is None


async def test_a_config_must_be_serialisable(tmp_path):
    model = art.Model(name="m", project="p", config=Config(thing=object()), base_path=str(tmp_path))
    with pytest.raises(ValueError, match="not JSON-serialisable"):
        await model.register(Recorder())


async def test_endpoint(model, tmp_path):
    with pytest.raises(ValueError, match="register"):
        model.openai_client()
    with pytest.raises(ValueError, match="not registered"):
        model.backend()
    with pytest.raises(ValueError, match="inference_api_key"):
        art.Model(name="x", project="p").openai_client()
    assert (model.get_inference_name(), model.get_inference_name(0)) == ("m", "m@0")
    await model.register(Recorder())
    client = model.openai_client()
    assert model.openai_client() is client
    assert (client.timeout.read, client.timeout.connect, client.api_key) == (1200, 5, "key")
    assert model.litellm_completion_params(step=2) == {
        "model": "hosted_vllm/m@2",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "key",
        "temperature": 1,
    }
    model.inference_api_key = "other"
    assert model.openai_client().api_key == "other"
    prompted = art.Model(
        name="x", project="p", inference_model_name="gpt", inference_api_key="k", inference_base_url="http://x/v1"
    )
    assert prompted.litellm_completion_params()["model"] == "gpt"
    assert await prompted.get_step() == 0


async def test_a_model_that_is_not_trained_needs_no_service(tmp_path, read_history):
    """Every call that a prompted baseline is used with, registered with a backend whose service does not run."""
    prompted = art.Model(
        name="x", project="p", inference_model_name="gpt", inference_api_key="k", inference_base_url="http://x/v1"
    )
    async with art.LocalBackend(path=tmp_path) as backend:
        await prompted.register(backend)
        for split in ("val", "train"):
            await prompted.log([art.Trajectory(reward=1.0)], split=split, metrics={"wins": 1})
        assert (await prompted.get_step(), prompted.get_inference_name()) == (0, "gpt")
        assert prompted.litellm_completion_params()["model"] == "gpt"
        prompted.merge_state({"seen": 3})
        prompted.metrics_builder("eval")
        async with prompted.rollout() as run:
            assert (run.id, run.base_url, run.api_key) == (None, "http://x/v1", "k")
            assert run.trajectory(reward=0.5).rollout_id is None
        with pytest.raises(ValueError, match="'x' is not trained, so it has no version 3"):
            async with prompted.rollout(step=3):
                pass
        assert backend._service.pid is None, "no service was started"
    directory = tmp_path / "p/models/x"
    assert [row["val/reward"] for row in read_history(prompted) if "val/reward" in row] == [1.0]
    assert {path.name for path in directory.glob("trajectories/*/*.parquet")} == {"0000.parquet"}


def test_state(model):
    assert model.read_state() is None
    model.overwrite_state({"a": {"x": 1}, "b": 1})
    assert model.merge_state({"a": {"y": 2}}) == {"a": {"x": 1, "y": 2}, "b": 1}
    assert model.read_state() == {"a": {"x": 1, "y": 2}, "b": 1}
    assert model._path("state.json").read_text().startswith('{\n  "a"')
    with pytest.raises(TypeError):
        model.overwrite_state({"a": object()})
    assert model.read_state() == {"a": {"x": 1, "y": 2}, "b": 1}
    with pytest.warns(DeprecationWarning, match="overwrite_state or merge_state"):
        model.write_state({"c": 1})
    assert model.read_state() == {"c": 1}


async def test_log_of_trajectories_is_one_row(model, read_history, tmp_path):
    groups = [
        art.TrajectoryGroup(
            [
                art.Trajectory(reward=0.8, metrics={"win": True, "costs/api": 0.25}),
                art.Trajectory(reward=0.6, metrics={"turns": 4}),
            ],
            exceptions=[ValueError("x")],
            metrics={"judged": 1, "costs/judge": 0.5},
            metadata={"scenario_id": "s1"},
        ),
        art.TrajectoryGroup([art.Trajectory(reward=0.7)], metadata={"scenario_id": "s2"}),
    ]
    await model.log(iter(groups), split="train", metrics={"loss/train": 0.1, "turns": 9}, step=3)
    (row,) = read_history(model)
    assert row["train/reward"] == (0.8 + 0.6 + 0.7) / 3
    assert row["train/exception_rate"] == 0.25
    assert row["train/win"] == 1.0
    assert row["train/turns"] == 9.0
    assert row["train/group_judged"] == 1.0
    assert row["train/reward_std_dev"] == pytest.approx(0.1)
    assert row["loss/train"] == 0.1
    assert (row["costs/api"], row["costs/judge"], row["costs/all"], row["costs/cum/all"]) == (0.25, 0.5, 0.75, 0.75)
    assert (row["data/step_num_scenarios"], row["data/step_num_trajectories"]) == (2, 4)
    assert (row["data/step_num_groups_submitted"], row["data/step_num_groups_trainable"]) == (2, 1)
    assert row["data/cum/num_unique_scenarios"] == 2
    assert (row["training_step"], row["step"]) == (3, 3)
    assert row["time/wall_clock_sec"] >= 0
    assert isinstance(row["train/win"], float)
    stored = read_trajectory_groups_parquet(tmp_path / "p/models/m/trajectories/train/0003.parquet")
    assert [[t.reward for t in group] for group in stored] == [[0.8, 0.6], [0.7]]


async def test_exact_mean(model, read_history):
    await model.log([art.Trajectory(reward=0.8), art.Trajectory(reward=0.6)], split="val", step=0)
    (row,) = read_history(model)
    assert row["val/reward"] == 0.7
    assert all(key.startswith(("val/", "data/")) for key in row_keys(row))


async def test_log_without_content(model, read_history, tmp_path):
    await model.log(step=1)
    await model.log(metrics={}, step=1)
    assert not model._path("history.jsonl").exists()
    await model.log([], split="val", step=1)
    (row,) = read_history(model)
    assert row["data/step_num_trajectories"] == 0
    assert read_trajectory_groups_parquet(tmp_path / "p/models/m/trajectories/val/0001.parquet") == []


async def test_log_refuses_a_mix_and_old_cost_names(model):
    with pytest.raises(TypeError, match="not a mix of Trajectory, TrajectoryGroup"):
        await model.log([art.Trajectory(), art.TrajectoryGroup([])], step=0)
    with pytest.raises(ValueError, match="'costs/gpu'"):
        await model.log(metrics={"costs_gpu": 1.0}, step=0)
    assert not model._path("history.jsonl").exists()


async def test_names(model, read_history):
    given = {"reward": 1, "rewardish/value": 1, "loss/x": 1, "val/y": 1, "nan": float("nan"), "inf": float("inf")}
    await model.log(metrics=given, split="train", step=0)
    await model.log(metrics=given, split="discarded", step=0)
    first, second = read_history(model)
    assert row_keys(first) == {"train/reward", "train/rewardish/value", "loss/x", "val/y"}
    assert row_keys(second) == {"discarded/reward", "discarded/rewardish/value", "discarded/loss/x", "discarded/val/y"}


async def test_totals_go_on_in_a_new_model(model, read_history, tmp_path):
    await model.log(metrics={"costs/gpu": 1.0, "time/step_actor_s": 2.0}, split="train", step=1)
    again = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await again.log(metrics={"costs/gpu": 0.5}, split="train", step=2)
    assert read_history(model)[1]["costs/cum/gpu"] == 1.5
    assert model.read_state()["_metrics_builder_state"]["cum_state"]["time/cum/actor_s"] == 2.0


async def test_costs_of_evaluation_stay_in_its_rows(model, read_history):
    token = model.activate_metrics_context("eval")
    MetricsBuilder.get_active().add_cost("eval/api", 2.0)
    token.var.reset(token)
    with pytest.raises(LookupError):
        MetricsBuilder.get_active()
    await model.log(metrics={"loss/x": 1.0}, split="train", step=1)
    await model.log(metrics={"reward": 1.0}, split="val", step=1)
    train, val = read_history(model)
    assert "costs/all" not in train
    assert (val["costs/eval/api"], val["costs/eval"], val["costs/cum/all"]) == (2.0, 2.0, 2.0)


async def test_automatic_metrics_of_train_steps(tmp_path, monkeypatch, read_history):
    clock = iter([100.0, 136.0, 200.0])
    # In that module alone: other threads and the event loop read the clock too.
    monkeypatch.setattr("art.logs.model.time", SimpleNamespace(monotonic=lambda: next(clock), time=time.time))
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    model._backend = Priced(rate=10)
    await model.log(metrics={"x": 1.0}, split="val", step=1)
    await model.log(metrics={"x": 1.0}, split="train", step=1)
    await model.log(metrics={"x": 2.0}, split="train", step=1)
    await model.log(metrics={"time/step_wall_s": 5.0}, split="train", step=2)
    rows = read_history(model)
    assert "time/step_wall_s" not in rows[0]
    assert (rows[1]["time/step_wall_s"], rows[1]["costs/gpu"]) == (36.0, 0.1)
    assert "time/step_wall_s" not in rows[2]
    assert rows[3]["time/step_wall_s"] == 5.0
    assert rows[3]["costs/gpu"] == pytest.approx(64 * 10 / 3600)


async def test_a_mock_as_backend_is_tolerated(model, read_history):
    model._backend = MagicMock()
    await model.log(metrics={"x": 1.0}, split="train", step=1)
    assert read_history(model)[0]["train/x"] == 1.0


async def test_the_old_way_to_train(model, read_history):
    await model.register(Recorder(step=4, metrics={"loss/train": 2.0}))
    with pytest.warns(DeprecationWarning, match=r"backend\.train"):
        await model.train([art.TrajectoryGroup([art.Trajectory(reward=1.0)])])
    (row,) = read_history(model)
    assert (row["loss/train"], row["train/reward"], row["step"]) == (2.0, 1.0, 4)


async def test_sft_logs_one_row_or_none(model, read_history):
    await model.register(Recorder(step=2, metrics={"loss/sft": 1.5}))
    await model.train_sft([])
    (row,) = read_history(model)
    assert (row["loss/sft"], row["step"]) == (1.5, 2)
    model.backend().metrics = None
    await model.train_sft([])
    assert len(read_history(model)) == 1


async def test_which_checkpoints_are_kept(model, capsys):
    backend = Recorder(step=5)
    await model.register(backend)
    await model.delete_checkpoints()
    assert "only the latest checkpoint is kept" in capsys.readouterr().err
    for step, reward in ((1, 0.5), (2, 0.5), (3, 0.1), (3, 0.2)):
        await model.log(metrics={"reward": reward}, step=step)
    with model._path("history.jsonl").open("a") as rows:
        rows.write(json.dumps({"step": 4, "val/reward": None}) + "\n")
    await model.delete_checkpoints()
    await model.delete_checkpoints(best_checkpoint_metric="val/other")
    assert backend.kept == [[5], [1, 5], [5]]


async def test_what_the_old_forms_are_given_reaches_the_backend(model, read_history):
    given = []

    class Asked(Recorder):
        async def _prepare_backend_for_training(self, model, config):
            given.append(config)
            return await super()._prepare_backend_for_training(model, config)

        async def train(self, *arguments, **options):
            given.append((*arguments, options))
            return await super().train(*arguments, **options)

        async def train_sft(self, *arguments, **options):
            given.append((*arguments, options))
            return await super().train_sft(*arguments, **options)

    server, groups, members = {"server_args": {"port": 1}}, [art.TrajectoryGroup([])], [art.Trajectory()]
    await model.register(Asked(metrics={"loss/train": 1.0}), _openai_client_config=server)
    rl, sft = art.TrainConfig(learning_rate=1e-3), art.TrainSFTConfig(batch_size=1)
    with pytest.warns(DeprecationWarning):
        await model.train(iter(groups), rl, {"epsilon": 0.1}, verbose=True)
    await model.train_sft(members, sft, {"train_on": "all"}, verbose=True)
    await model.train_sft(members)
    config, *calls = given
    assert config is server
    assert calls == [
        (model, groups, {"verbose": True, "learning_rate": 1e-3, "kl_penalty_coef": 0.0, "epsilon": 0.1}),
        (model, members, sft, {"verbose": True, "train_on": "all"}),
        (model, members, None, {"verbose": False}),
    ]
    assert len(read_history(model)) == 3


def test_models_are_generic_in_their_config_and_state(tmp_path):
    typed = art.TrainableModel[Config, dict](
        name="m", project="p", base_model="any name", config=Config(rounds=2), base_path=str(tmp_path)
    )
    assert typed.config.rounds == 2
    assert isinstance(typed, art.TrainableModel)


def test_the_builder_of_a_model_is_that_of_training_and_of_each_context_one(model):
    builder = model.metrics_builder()
    assert (builder, builder.cost_context) == (model.metrics_builder("train"), "train")
    assert model.metrics_builder("eval") is builder.for_cost_context("eval")
    token = model.activate_metrics_context("eval")
    assert MetricsBuilder.get_active() is model.metrics_builder("eval")
    token.var.reset(token)
