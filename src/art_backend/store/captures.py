"""Captured rollouts on disk: turns are stored, in one transaction, before their answer leaves.

Trees in use stay in memory; the others are read back from disk on demand. All callers get the same
object for the same rollout.
"""

import hashlib
import json
import secrets
import sqlite3
import time
import uuid
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import orjson

from art.wire import RolloutInfo, RolloutKind, RolloutRows, RolloutTree, TreeNode
from art_backend.errors import NotFoundError
from art_backend.store.database import SteadyClock, add_column, transaction
from art_backend.tokens.rows import build_rows, describe_untrainable
from art_backend.tokens.setting import Setting
from art_backend.tokens.tree import Prompt, Tree, Turn

IDS_IN_MEMORY = 20_000_000
"""Ids of trees that are kept in memory beside the database, about 12 bytes each."""

_TREE_OVERHEAD = 200
"""What an empty tree counts for, in ids."""

_OWNERS_IN_MEMORY = 20_000

_REQUESTS_BETWEEN_LOOKS = 64

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    id TEXT PRIMARY KEY, key_digest BLOB UNIQUE, kind TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL,
    step INTEGER, metadata TEXT NOT NULL, turns INTEGER NOT NULL DEFAULT 0, truncated INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL, used_at REAL NOT NULL
);
DROP INDEX IF EXISTS rollouts_by_use; -- it cost every turn more than retention, which looks once an hour, ever gained
CREATE TABLE IF NOT EXISTS prompts (
    id TEXT PRIMARY KEY, rollout TEXT NOT NULL REFERENCES rollouts (id) ON DELETE CASCADE, parent TEXT,
    keep INTEGER NOT NULL, digest BLOB NOT NULL, ids BLOB NOT NULL, messages TEXT NOT NULL, tools TEXT
);
CREATE INDEX IF NOT EXISTS prompts_by_rollout ON prompts (rollout);
CREATE TABLE IF NOT EXISTS turns (
    id TEXT PRIMARY KEY, rollout TEXT NOT NULL REFERENCES rollouts (id) ON DELETE CASCADE, prompt TEXT NOT NULL,
    ids BLOB NOT NULL, logprobs BLOB NOT NULL, digest BLOB NOT NULL, message TEXT NOT NULL,
    policy_version INTEGER NOT NULL, sampling TEXT NOT NULL, untrainable TEXT, finish_reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_by_rollout ON turns (rollout);
CREATE TABLE IF NOT EXISTS requests (
    turn TEXT PRIMARY KEY REFERENCES turns (id) ON DELETE CASCADE, content TEXT NOT NULL
);
"""


class CaptureStore:
    """Rollouts, their keys and their trees."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._db.executescript(_SCHEMA)
        self._clock = SteadyClock(connection)
        add_column(connection, "prompts", "setting", "TEXT")
        self._recent: OrderedDict[str, Tree] = OrderedDict()
        self._in_use: weakref.WeakValueDictionary[str, Tree] = weakref.WeakValueDictionary()
        self._owners: dict[bytes, RolloutInfo] = {}
        self._requests = 0
        self.deletions = 0
        """Number of deletions of rollouts: copies of what is stored are valid while it does not change."""

    # Rollouts

    def create_rollout(
        self,
        project: str,
        model: str,
        step: int | None = None,
        metadata: dict[str, Any] | None = None,
        kind: RolloutKind = RolloutKind.KEYED,
    ) -> RolloutInfo:
        """Make a rollout. Its key is returned only here; the store keeps a digest."""
        rollout = f"r_{uuid.uuid4().hex[:20]}"
        key = f"art-r-{secrets.token_urlsafe(24)}"
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO rollouts (id, key_digest, kind, project, model, step, metadata, created_at, used_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    rollout,
                    _digest(key),
                    kind,
                    project,
                    model,
                    step,
                    json.dumps(metadata or {}),
                    time.time(),
                    self._clock.now(),
                ),
            )
        self._remember(rollout, Tree(shared=kind is RolloutKind.AMBIENT))
        return self.get(rollout).model_copy(update={"api_key": key})

    def get(self, rollout: str) -> RolloutInfo:
        """Raises NotFoundError for an unknown id. ``api_key`` is empty: the store knows only its digest."""
        row = self._db.execute("SELECT * FROM rollouts WHERE id = ?", (rollout,)).fetchone()
        if row is None:
            raise _unknown(rollout)
        return _info(row)

    def find_by_key(self, key: str) -> RolloutInfo | None:
        """Whose key this is. How many turns it has, and whether it was truncated, is as of the first time asked."""
        digest = _digest(key)
        if digest not in self._owners:
            row = self._db.execute("SELECT * FROM rollouts WHERE key_digest = ?", (digest,)).fetchone()
            if row is None:
                return None
            if len(self._owners) >= _OWNERS_IN_MEMORY:
                self._owners.clear()
            self._owners[digest] = _info(row)
        return self._owners[digest]

    def latest_ambient(self, project: str, model: str, limit: int) -> list[str]:
        """Ids of the ambient rollouts of a model that were begun last, the latest first."""
        rows = self._db.execute(
            "SELECT id FROM rollouts WHERE kind = ? AND project = ? AND model = ? ORDER BY rowid DESC LIMIT ?",
            (RolloutKind.AMBIENT, project, model, limit),
        )
        return [row["id"] for row in rows]

    def mark_truncated(self, rollout: str) -> None:
        """Note that a prompt of this rollout no longer fits the context."""
        with transaction(self._db):
            self._db.execute("UPDATE rollouts SET truncated = 1 WHERE id = ?", (rollout,))

    def delete(self, rollout: str) -> None:
        """Delete a rollout and give its space back. Raises NotFoundError for an unknown id."""
        if not self._delete("id = ?", rollout):
            raise _unknown(rollout)

    def delete_unused(self, seconds: float) -> int:
        """Delete rollouts that were not used for so long, and give their space back; return how many."""
        self._clock.save()
        return self._delete("used_at < ?", self._clock.now() - seconds)

    def delete_model(self, project: str, model: str) -> int:
        """Delete all rollouts of a model; return how many."""
        return self._delete("project = ? AND model = ?", project, model)

    def _delete(self, condition: str, *values: str | float) -> int:
        ids = [row["id"] for row in self._db.execute(f"SELECT id FROM rollouts WHERE {condition}", values)]
        with transaction(self._db):
            self._db.executemany("DELETE FROM rollouts WHERE id = ?", [(rollout,) for rollout in ids])
        if ids:
            self.deletions += 1
            # as a script: a single execute would free a single page
            self._owners.clear()
            self._db.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
        for rollout in ids:
            self._recent.pop(rollout, None)
            self._in_use.pop(rollout, None)
        return len(ids)

    # Trees

    def tree(self, rollout: str) -> Tree:
        """The tree of a rollout; all callers get the same object."""
        tree = self._in_use.get(rollout)
        if tree is None:
            tree = self._read(rollout)
        self._remember(rollout, tree)
        return tree

    def store_turns(self, rollout: str, turns: Sequence[Turn], request: dict[str, Any] | None = None) -> None:
        """Make turns, and the prompt that they share, durable: all of them or none.

        Args:
            request: Kept beside them, so that the answer can be repeated.

        Raises:
            NotFoundError: The rollout was deleted meanwhile.
            StorageFailedError: The disk is full or not writable.
        """
        prompt = turns[0].prompt
        try:
            with transaction(self._db):
                self._db.execute(
                    "UPDATE rollouts SET turns = turns + ?, used_at = ? WHERE id = ?",
                    (len(turns), self._clock.now(), rollout),
                )
                self._db.execute(
                    "INSERT OR IGNORE INTO prompts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        prompt.id,
                        rollout,
                        prompt.parent.id if prompt.parent else None,
                        prompt.keep,
                        prompt.digest,
                        prompt.ids.tobytes(),
                        _write(prompt.messages),
                        _write(prompt.tools) if prompt.tools else None,
                        _write(prompt.setting) if prompt.setting else None,
                    ),
                )
                self._db.executemany(
                    "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(turn.id, rollout, prompt.id, *_turn_columns(turn)) for turn in turns],
                )
                if request is not None:
                    content = _write(request)
                    self._db.executemany("INSERT INTO requests VALUES (?, ?)", [(turn.id, content) for turn in turns])
        except sqlite3.IntegrityError as error:
            raise _unknown(rollout) from error

    def describe(self, rollout: str) -> RolloutTree:
        """A rollout with all its nodes, in the order in which they were sampled."""
        info, tree = self.get(rollout), self.tree(rollout)
        nodes: list[TreeNode] = []
        seen: set[str] = set()
        for turn in tree.turns.values():
            prompt = turn.prompt
            if prompt.id not in seen:
                seen.add(prompt.id)
                parent = prompt.parent.id if prompt.parent else None
                nodes.append(
                    TreeNode(
                        id=prompt.id, parent=parent, keep=prompt.keep, messages=prompt.messages, tools=prompt.tools,
                        token_ids=prompt.ids.tolist(), sampled=False,
                    )
                )  # fmt: skip
            nodes.append(
                TreeNode(
                    id=turn.id, parent=prompt.id, keep=prompt.length, messages=[turn.message],
                    token_ids=turn.ids.tolist(), sampled=True, logprobs=turn.logprobs.tolist(),
                    policy_version=turn.policy_version, sampling=turn.sampling, untrainable=turn.untrainable,
                    finish_reason=turn.finish_reason,
                )
            )  # fmt: skip
        return RolloutTree(**info.model_dump(), nodes=nodes)

    def find_request(self, turn: str) -> dict[str, Any] | None:
        """What was kept beside a turn."""
        row = self._db.execute("SELECT content FROM requests WHERE turn = ?", (turn,)).fetchone()
        return None if row is None else orjson.loads(row["content"])

    def forget_request(self, turn: str) -> None:
        """Forget what was kept beside a turn; the turn stays."""
        with transaction(self._db):
            self._db.execute("DELETE FROM requests WHERE turn = ?", (turn,))

    def find_rollout(self, turn: str) -> str | None:
        """The rollout that a turn was captured in."""
        row = self._db.execute("SELECT rollout FROM turns WHERE id = ?", (turn,)).fetchone()
        return None if row is None else row["rollout"]

    # Training rows

    def rows(self, rollout: str) -> RolloutRows:
        """Training rows of all turns of a rollout."""
        self.get(rollout)
        rows, untrainable = build_rows(self.tree(rollout).turns.values())
        problems = [describe_untrainable(turn) for turn in untrainable]
        return RolloutRows(rollout=rollout, rows=rows, untrainable_turns=problems)

    def find_turns(self, turns: Sequence[str]) -> dict[str, list[Turn]]:
        """Single turns, by rollout.

        Raises:
            NotFoundError: A turn is unknown.
        """
        found: dict[str, list[Turn]] = {}
        for turn in dict.fromkeys(turns):
            rollout = self.find_rollout(turn)
            if rollout is None:
                raise NotFoundError(f"No captured turn {turn!r}. It may have been deleted by retention.", param="turns")
            found.setdefault(rollout, []).append(self.tree(rollout).turns[turn])
        return found

    def _remember(self, rollout: str, tree: Tree) -> None:
        self._in_use[rollout] = tree
        self._recent[rollout] = tree
        self._recent.move_to_end(rollout)
        self._forget_if_full()

    def _forget_if_full(self) -> None:
        """Let go of the trees that were not asked for the longest. Looks now and then only: looking takes time too."""
        self._requests += 1
        if self._requests % _REQUESTS_BETWEEN_LOOKS:
            return
        size = sum(_TREE_OVERHEAD + tree.size for tree in self._recent.values())
        while size > IDS_IN_MEMORY and len(self._recent) > 1:
            _, tree = self._recent.popitem(last=False)
            size -= _TREE_OVERHEAD + tree.size

    def _read(self, rollout: str) -> Tree:
        kind = self._db.execute("SELECT kind FROM rollouts WHERE id = ?", (rollout,)).fetchone()
        tree = Tree(shared=kind is not None and kind["kind"] == RolloutKind.AMBIENT)
        rows = {row["id"]: row for row in self._db.execute("SELECT * FROM prompts WHERE rollout = ?", (rollout,))}
        for row in self._db.execute("SELECT * FROM turns WHERE rollout = ? ORDER BY rowid", (rollout,)):
            prompt = tree.prompts.get(row["prompt"])
            if prompt is None:
                prompt = _read_prompt(rows[row["prompt"]], tree)
            tree.add(_read_turn(row, prompt))
        return tree


def _turn_columns(turn: Turn) -> tuple[Any, ...]:
    return (
        turn.ids.tobytes(),
        turn.logprobs.tobytes(),
        turn.digest,
        _write(turn.message),
        turn.policy_version,
        _write(turn.sampling),
        turn.untrainable,
        turn.finish_reason,
    )


def _write(value: Any) -> str:
    return orjson.dumps(value).decode()


def _read_prompt(row: sqlite3.Row, tree: Tree) -> Prompt:
    return Prompt(
        id=row["id"],
        parent=tree.turns[row["parent"]] if row["parent"] else None,
        keep=row["keep"],
        ids=array("i", row["ids"]),
        digest=row["digest"],
        messages=orjson.loads(row["messages"]),
        tools=orjson.loads(row["tools"]) if row["tools"] else None,
        setting=Setting(**orjson.loads(row["setting"])) if row["setting"] else None,
    )


def _read_turn(row: sqlite3.Row, prompt: Prompt) -> Turn:
    return Turn(
        id=row["id"],
        prompt=prompt,
        ids=array("i", row["ids"]),
        logprobs=array("d", row["logprobs"]),
        digest=row["digest"],
        message=orjson.loads(row["message"]),
        policy_version=row["policy_version"],
        sampling=orjson.loads(row["sampling"]),
        untrainable=row["untrainable"],
        finish_reason=row["finish_reason"],
    )


def _info(row: sqlite3.Row) -> RolloutInfo:
    return RolloutInfo(
        id=row["id"],
        api_key="",
        base_path=f"/r/{row['id']}/v1",
        kind=RolloutKind(row["kind"]),
        project=row["project"],
        model=row["model"],
        step=row["step"],
        metadata=json.loads(row["metadata"]),
        turns=row["turns"],
        truncated=bool(row["truncated"]),
    )


def _unknown(rollout: str) -> NotFoundError:
    return NotFoundError(f"No rollout {rollout!r}. It may have been deleted by retention.", param="rollout")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
