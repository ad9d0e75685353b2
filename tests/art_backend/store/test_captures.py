"""Captured rollouts on disk."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.tiny import build_tiny_tokenizer

from art.wire import RolloutKind
from art_backend.errors import NotFoundError, StorageFailedError
from art_backend.store import captures as module
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database
from art_backend.tokens.render import ChatRenderer
from art_backend.tokens.rows import build_rows
from art_backend.tokens.tree import Sampled, new_id


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(build_tiny_tokenizer())


@pytest.fixture
def store(tmp_path):
    database = open_database(tmp_path / "art.db")
    yield CaptureStore(database)
    database.close()


def rows_of(turns):
    rows, untrainable = build_rows(turns)
    assert not untrainable
    return rows


def take_turn(store, renderer, rollout, messages, text, version=0, arguments=None):
    tree = store.tree(rollout)
    placed = tree.place(messages, None, renderer, arguments)
    ids = module.array("i", [*renderer.encode(text), 2])
    message = {"role": "assistant", "content": text}
    logprobs = module.array("d", [-0.25] * len(ids))
    sampled = Sampled(ids, logprobs, message, version, {"temperature": 1.0}, None, "stop", new_id("t"))
    (turn,) = tree.commit(placed, placed.path_ids(), [sampled], lambda turns: store.store_turns(rollout, turns))
    return turn


HELLO = [{"role": "user", "content": "Hello"}]
MORE = [*HELLO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "?"}]


def test_a_key_opens_its_rollout_and_is_not_stored(store, tmp_path):
    info = store.create_rollout("p", "m", step=3, metadata={"seed": 1})
    assert store.find_by_key(info.api_key).id == info.id
    assert store.find_by_key("other") is None
    again = store.get(info.id)
    assert (again.api_key, again.step, again.metadata, again.kind) == ("", 3, {"seed": 1}, RolloutKind.KEYED)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert info.api_key.encode() not in (tmp_path / "art.db").read_bytes()


def test_what_is_read_back_is_what_was_stored(store, renderer, tmp_path):
    rollout = store.create_rollout("p", "m").id
    take_turn(store, renderer, rollout, HELLO, "one")
    take_turn(store, renderer, rollout, HELLO, "two", version=4)
    take_turn(store, renderer, rollout, MORE, "three")
    database = open_database(tmp_path / "art.db")
    other = CaptureStore(database)
    assert other.rows(rollout) == store.rows(rollout)
    assert other.describe(rollout) == store.describe(rollout)
    assert other.get(rollout).turns == 3
    turn = take_turn(other, renderer, rollout, MORE, "four")
    assert turn.prompt.parent.message["content"] == "one"
    assert len(turn.path_ids()) > len(turn.prompt.ids)
    database.close()


def test_the_tree_is_described_node_by_node(store, renderer):
    rollout = store.create_rollout("p", "m").id
    first = take_turn(store, renderer, rollout, HELLO, "one")
    second = take_turn(store, renderer, rollout, MORE, "two")
    nodes = store.describe(rollout).nodes
    assert [(node.id, node.parent, node.sampled) for node in nodes] == [
        (first.prompt.id, None, False),
        (first.id, first.prompt.id, True),
        (second.prompt.id, first.id, False),
        (second.id, second.prompt.id, True),
    ]
    assert [len(node.messages) for node in nodes] == [1, 1, 1, 1]
    assert nodes[2].messages == [MORE[-1]]
    assert [i for node in nodes for i in node.token_ids] == second.path_ids().tolist()
    assert [node.keep for node in nodes] == [0, len(first.prompt.ids), first.length, second.prompt.length]


def test_rows_of_single_turns_by_rollout(store, renderer):
    one, two = store.create_rollout("p", "m").id, store.create_rollout("p", "m").id
    first = take_turn(store, renderer, one, HELLO, "one")
    second = take_turn(store, renderer, one, MORE, "two")
    other = take_turn(store, renderer, two, HELLO, "three")
    found = store.find_turns([second.id, other.id, second.id])
    assert list(found) == [one, two]
    assert [sum(row.sampled) for turns in found.values() for row in rows_of(turns)] == [len(second.ids), len(other.ids)]
    both = store.find_turns([first.id, second.id])[one]
    assert rows_of(both)[0].token_ids == second.path_ids().tolist()
    with pytest.raises(NotFoundError, match="t_nope"):
        store.find_turns([first.id, "t_nope"])


def test_old_rollouts_are_deleted_by_their_last_use_and_space_returns(store, renderer, tmp_path, monkeypatch):
    old, used = store.create_rollout("p", "m").id, store.create_rollout("p", "m").id
    for _ in range(40):
        take_turn(store, renderer, old, [{"role": "user", "content": "x" * 5000}], "y" * 5000)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    full = (tmp_path / "art.db").stat().st_size
    later = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + 3600)
    monkeypatch.setattr("art_backend.store.database.time", later)
    turn = take_turn(store, renderer, used, HELLO, "one")
    assert store.delete_unused(1800) == 1
    with pytest.raises(NotFoundError):
        store.get(old)
    assert list(store.find_turns([turn.id])) == [used]
    assert (tmp_path / "art.db").stat().st_size < full / 4
    store.delete(used)
    with pytest.raises(NotFoundError):
        store.delete(used)
    assert store.delete_unused(-1) == 0


def test_a_turn_of_a_deleted_rollout_is_refused_and_stays_nowhere(store, renderer):
    rollout = store.create_rollout("p", "m").id
    tree = store.tree(rollout)
    store.delete(rollout)
    store._remember(rollout, tree)
    with pytest.raises(NotFoundError):
        take_turn(store, renderer, rollout, HELLO, "one")
    assert tree.turns == {} and tree.prompts == {}


def test_a_full_disk_leaves_tree_and_database_as_they_were(store, renderer):
    rollout = store.create_rollout("p", "m").id
    take_turn(store, renderer, rollout, HELLO, "one")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFailedError):
        take_turn(store, renderer, rollout, [{"role": "user", "content": "z" * 100_000}], "two")
    assert len(store.tree(rollout).turns) == store.get(rollout).turns == 1
    store._db.execute("PRAGMA max_page_count = 1000000")
    take_turn(store, renderer, rollout, MORE, "two")
    assert len(store.rows(rollout).rows) == 1


def test_memory_lets_go_of_trees_that_nobody_uses(store, renderer, monkeypatch):
    monkeypatch.setattr(module, "IDS_IN_MEMORY", 1000)
    monkeypatch.setattr(module, "_REQUESTS_BETWEEN_LOOKS", 1)
    rollouts = [store.create_rollout("p", "m").id for _ in range(12)]
    held = store.tree(rollouts[0])
    for rollout in rollouts[1:]:
        take_turn(store, renderer, rollout, HELLO, "one")
    assert len(store._recent) <= 5
    assert store.tree(rollouts[0]) is held, "a tree in use stays the same object"
    assert len(store.tree(rollouts[1]).turns) == 1


ROOT = Path(__file__).parents[3]
WRITES_FOR_EVER = """
import sys
from pathlib import Path
from tests.art_backend.store.test_captures import HELLO, CaptureStore, ChatRenderer, build_tiny_tokenizer, open_database, take_turn

store, renderer = CaptureStore(open_database(Path(sys.argv[1]))), ChatRenderer(build_tiny_tokenizer())
rollout = store.create_rollout("p", "m").id
print(rollout, flush=True)
while True:
    print(take_turn(store, renderer, rollout, HELLO, "one").id, flush=True)
"""


def test_turns_survive_a_kill(tmp_path):
    """Every turn that was acknowledged before ``kill -9`` is there afterwards."""
    command = [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path / "art.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        rollout, *acknowledged = [child.stdout.readline().strip() for _ in range(201)]
        child.kill()
    database = open_database(tmp_path / "art.db")
    store = CaptureStore(database)
    assert all(acknowledged)
    assert set(acknowledged) <= set(store.tree(rollout).turns)
    database.close()
