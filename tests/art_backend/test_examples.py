"""Where the tokens of an example are found, and what is said where they cannot be."""

from array import array
from types import SimpleNamespace

import pytest
from tests.support.tiny import build_tiny_tokenizer

from art.wire import Example, LoraSpec, RegisterModel, TokenRow, TrainGroup, TrainTrajectory
from art_backend.errors import BadRequestError
from art_backend.examples import ExampleFinder, tell_untrainable
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database
from art_backend.store.runs import RunStore
from art_backend.tokens.render import ChatRenderer
from art_backend.tokens.tree import Sampled, new_id

HELLO = [{"role": "user", "content": "Hello"}]
IDS = [5, 6, 2]
GREEDY = "it was sampled greedily"


@pytest.fixture
def policy():
    return SimpleNamespace(
        step=0,
        renderer=ChatRenderer(build_tiny_tokenizer()),
        host=SimpleNamespace(settings=SimpleNamespace(served_name="tiny")),
    )


@pytest.fixture
def stores(tmp_path):
    database = open_database(tmp_path / "art.db")
    captures, runs = CaptureStore(database), RunStore(database)
    for name, base in (("pupil", "tiny"), ("teacher", "another")):
        runs.register_model(RegisterModel(project="p", name=name, base_model=base, lora=LoraSpec()))
    yield captures, runs
    database.close()


def capture(captures, renderer, model="pupil", untrainable=None):
    """A rollout with one turn; its id and the turn's."""
    rollout = captures.create_rollout("p", model).id
    tree = captures.tree(rollout)
    placed = tree.place(HELLO, None, renderer)
    message = {"role": "assistant", "content": "hi"}
    sampled = Sampled(
        array("i", IDS), array("d", [-0.5] * 3), message, 0, {"temperature": 0.5}, untrainable, "stop", new_id("t")
    )
    (turn,) = tree.commit(placed, placed.path_ids(), [sampled], lambda turns: captures.store_turns(rollout, turns))
    return rollout, turn.id


def group(*members):
    """Trajectories of these examples."""
    return TrainGroup(trajectories=[TrainTrajectory(reward=1.0, **member) for member in members])


async def test_what_was_captured_is_found_by_rollout_and_by_turn(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, turn = capture(stores[0], policy.renderer)
    for given in ({"rollout": rollout}, {"turns": [turn]}, {"rollout": rollout, "turns": [turn, turn]}):
        example = Example(**given)
        (((scored,),), warnings) = await finder.find_groups(policy, [group(given)])
        (row,) = scored.rows
        assert (row.token_ids[-3:], row.temperature, warnings) == (IDS, 0.5, [])
        (learned,) = await finder.find_rows_to_imitate(policy, example, "e", "assistant")
        assert (learned.token_ids, learned.sampled, learned.temperature) == (row.token_ids, row.sampled, 1.0)
        (everything,) = await finder.find_rows_to_imitate(policy, example, "e", "all")
        assert everything.sampled == [False] + [True] * (len(row.token_ids) - 1)


async def test_what_cannot_be_trained_is_said_and_may_be_imitated(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, turn = capture(stores[0], policy.renderer, untrainable=GREEDY)
    silent = stores[0].create_rollout("p", "pupil").id
    with pytest.raises(
        BadRequestError, match=f"groups.0.trajectories.1: no token to train on. turn {turn} cannot be trained: {GREEDY}"
    ):
        await finder.find_groups(policy, [group({"rollout": silent}, {"rollout": rollout})])
    (row,) = await finder.find_rows_to_imitate(policy, Example(rollout=rollout), "e", "assistant")
    assert sum(row.sampled) == 3
    other, _ = capture(stores[0], policy.renderer)
    (((scored, nothing),), warnings) = await finder.find_groups(policy, [group({"rollout": other}, {"turns": [turn]})])
    assert (len(scored.rows), nothing.rows) == (1, [])
    assert warnings == [f"1 turns were left out (the first: groups.0.trajectories.1, turn {turn}): {GREEDY}"]


async def test_a_trajectory_in_which_nothing_was_sampled_is_left_out_and_named(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, _ = capture(stores[0], policy.renderer)
    silent, full = (stores[0].create_rollout("p", "pupil").id for _ in range(2))
    stores[0].mark_truncated(full)
    groups = [group({"rollout": rollout}, {"rollout": full}, {"rollout": silent}), group({}, {})]
    (first, second), (warning,) = await finder.find_groups(policy, groups)
    assert [len(scored.rows) for scored in (*first, *second)] == [1, 0, 0, 0, 0]
    assert [scored.reward for scored in (*first, *second)] == [1.0] * 5
    assert warning.startswith("4 trajectories have no token to train and were left out; their rewards still count")
    assert f"groups.0.trajectories.1: The first prompt of rollout {full} fills the model's context" in warning
    assert f"groups.0.trajectories.2: Nothing was sampled in rollout {silent}: an agent must call" in warning
    assert "groups.1.trajectories.1: No model call was captured" in warning
    assert await finder.find_groups(policy, [group({"rollout": full})])  # a whole step of them is an empty one


@pytest.mark.parametrize("across_groups", [False, True])
@pytest.mark.parametrize("second", ["rollout", "turns"])
@pytest.mark.parametrize("first", ["rollout", "turns"])
async def test_a_turn_is_trained_once(stores, policy, first, second, across_groups):
    finder = ExampleFinder(*stores)
    rollout, turn = capture(stores[0], policy.renderer)
    _, other = capture(stores[0], policy.renderer)
    ways = {"rollout": {"rollout": rollout}, "turns": {"turns": [other, turn]}}
    one, two = ways[first], {"turns": [turn]} if second == "turns" else ways[second]
    groups = [group(one), group(two)] if across_groups else [group(one, two)]
    where = "groups.1.trajectories.0" if across_groups else "groups.0.trajectories.1"
    words = f"{where} is the same run as groups.0.trajectories.0: both would train turn {turn}"
    with pytest.raises(BadRequestError, match=words) as caught:
        await finder.find_groups(policy, groups)
    assert caught.value.param == where


async def test_equal_rows_are_not_one_run(stores, policy):
    row = TokenRow(token_ids=[5, 6], sampled=[False, True], logprobs=[0, -1], policy_versions=[-1, 0], temperature=1)
    (((first, second),), _) = await ExampleFinder(*stores).find_groups(
        policy, [group({"rows": [row]}, {"rows": [row]})]
    )
    assert first.rows == second.rows == [row]


def test_turns_are_told_by_reason():
    turn = SimpleNamespace(id="t", untrainable=GREEDY)
    assert tell_untrainable([("e", turn)] * 2) == [f"2 turns were left out (the first: e, turn t): {GREEDY}"]


async def test_tokens_of_another_vocabulary_and_of_nobody_are_refused(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, _ = capture(stores[0], policy.renderer, model="teacher")
    silent = stores[0].create_rollout("p", "pupil").id
    for match, example in (
        ("tokens are those of p/teacher, whose base model is 'another', not 'tiny'", Example(rollout=rollout)),
        ("No rollout 'r_gone'", Example(rollout="r_gone")),
        ("No captured turn 't_gone'", Example(turns=["t_gone"])),
        ("no token to train on. No model call was captured for it: give it", Example()),
        (f"Nothing was sampled in rollout {silent}: an agent must call", Example(rollout=silent)),
    ):
        with pytest.raises(BadRequestError, match=match) as caught:
            await finder.find_rows_to_imitate(policy, example, "examples.3", "assistant")
        assert caught.value.param == "examples.3"
