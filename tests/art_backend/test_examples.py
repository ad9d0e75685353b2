"""Where the tokens of an example are found, and what is said where they cannot be."""

from array import array
from types import SimpleNamespace

import pytest
from tests.support.tiny import build_tiny_tokenizer

from art.wire import Example, LoraSpec, RegisterModel
from art_backend.errors import BadRequestError
from art_backend.examples import ExampleFinder, tell_untrainable
from art_backend.gateway.render import ChatRenderer
from art_backend.gateway.tree import Sampled, new_id
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database
from art_backend.store.runs import RunStore

HELLO = [{"role": "user", "content": "Hello"}]
IDS = [5, 6, 2]
GREEDY = "it was sampled greedily"


@pytest.fixture
def policy():
    return SimpleNamespace(
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


async def test_what_was_captured_is_found_by_rollout_and_by_turn(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, turn = capture(stores[0], policy.renderer)
    for example in (Example(rollout=rollout), Example(turns=[turn])):
        ((row,), left_out) = await finder.find_rows(policy, example, "e")
        assert (row.token_ids[-3:], row.temperature, left_out) == (IDS, 0.5, [])
        (learned,) = await finder.find_rows_to_imitate(policy, example, "e", "assistant")
        assert (learned.token_ids, learned.sampled, learned.temperature) == (row.token_ids, row.sampled, 1.0)
        (everything,) = await finder.find_rows_to_imitate(policy, example, "e", "all")
        assert everything.sampled == [False] + [True] * (len(row.token_ids) - 1)


async def test_what_cannot_be_trained_is_said_and_may_be_imitated(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, turn = capture(stores[0], policy.renderer, untrainable=GREEDY)
    with pytest.raises(BadRequestError, match=f"e: no token to train on. turn {turn} cannot be trained: {GREEDY}"):
        await finder.find_rows(policy, Example(rollout=rollout), "e")
    (row,) = await finder.find_rows_to_imitate(policy, Example(rollout=rollout), "e", "assistant")
    assert sum(row.sampled) == 3
    other, _ = capture(stores[0], policy.renderer)
    rows, left_out = await finder.find_rows(policy, Example(rollout=other, turns=[turn]), "e")
    assert len(rows) == 1
    assert tell_untrainable([("e", sentence) for sentence in left_out * 2]) == [
        f"2 turns were left out (the first: e, turn {turn}): {GREEDY}"
    ]


async def test_tokens_of_another_vocabulary_and_of_nobody_are_refused(stores, policy):
    finder = ExampleFinder(*stores)
    rollout, _ = capture(stores[0], policy.renderer, model="teacher")
    silent = stores[0].create_rollout("p", "pupil").id
    for match, example in (
        ("tokens are those of p/teacher, whose base model is 'another', not 'tiny'", Example(rollout=rollout)),
        ("No rollout 'r_gone'", Example(rollout="r_gone")),
        ("No captured turn 't_gone'", Example(turns=["t_gone"])),
        ("no token to train on. Give it", Example()),
        (f"Nothing was sampled in rollout {silent}: let the agent call", Example(rollout=silent)),
    ):
        with pytest.raises(BadRequestError, match=match) as caught:
            await finder.find_rows_to_imitate(policy, example, "examples.3", "assistant")
        assert caught.value.param == "examples.3"
