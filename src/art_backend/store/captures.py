"""Captured rollouts on disk: a turn is stored, in one transaction, before its answer leaves."""

import hashlib
import json
import secrets
import sqlite3
import time
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from art.wire import RolloutInfo, RolloutKind, RolloutRows
from art_backend.errors import NotFoundError
from art_backend.gateway.tree import Prompt, Tree, Turn
from art_backend.store.database import transaction
from art_backend.training.sequences import build_rows

TREES_IN_MEMORY = 4096
"""Trees kept beside the database; others are read back when they are needed."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    id TEXT PRIMARY KEY, key_digest BLOB UNIQUE, kind TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL,
    step INTEGER, metadata TEXT NOT NULL, truncated INTEGER NOT NULL DEFAULT 0, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS rollouts_by_age ON rollouts (created_at);
CREATE TABLE IF NOT EXISTS prompts (
    id TEXT PRIMARY KEY, rollout TEXT NOT NULL REFERENCES rollouts (id) ON DELETE CASCADE, parent TEXT,
    digest BLOB NOT NULL, ids BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS prompts_by_rollout ON prompts (rollout);
CREATE TABLE IF NOT EXISTS turns (
    id TEXT PRIMARY KEY, rollout TEXT NOT NULL REFERENCES rollouts (id) ON DELETE CASCADE, prompt TEXT NOT NULL,
    digest BLOB NOT NULL, ids BLOB NOT NULL, logprobs BLOB NOT NULL, policy_version INTEGER NOT NULL,
    temperature REAL NOT NULL, untrainable TEXT, message TEXT NOT NULL, finish_reason TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_by_rollout ON turns (rollout);
"""


class CaptureStore:
    """Rollouts, their keys and their trees."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._db.executescript(_SCHEMA)
        self._trees: OrderedDict[str, Tree] = OrderedDict()

    def create_rollout(
        self,
        project: str,
        model: str,
        step: int | None = None,
        metadata: dict[str, Any] | None = None,
        kind: RolloutKind = RolloutKind.KEYED,
    ) -> RolloutInfo:
        """Make a rollout. Its key is told once, here; only a digest of it is stored."""
        rollout = f"r_{uuid.uuid4().hex[:20]}"
        key = f"art-r-{secrets.token_urlsafe(24)}"
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO rollouts (id, key_digest, kind, project, model, step, metadata, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (rollout, _digest(key), kind, project, model, step, json.dumps(metadata or {}), time.time()),
            )
        self._remember(rollout, Tree())
        return self.get(rollout).model_copy(update={"api_key": key})

    def get(self, rollout: str) -> RolloutInfo:
        """Raises NotFoundError for an unknown id. The key is not told again: it is empty."""
        row = self._db.execute("SELECT * FROM rollouts WHERE id = ?", (rollout,)).fetchone()
        if row is None:
            raise NotFoundError(f"No rollout {rollout!r}. It may have been deleted by retention.", param="rollout")
        return self._info(row)

    def find_by_key(self, key: str) -> RolloutInfo | None:
        row = self._db.execute("SELECT * FROM rollouts WHERE key_digest = ?", (_digest(key),)).fetchone()
        return None if row is None else self._info(row)

    def tree(self, rollout: str) -> Tree:
        """The tree of a rollout; the same object for everyone who asks."""
        if rollout in self._trees:
            self._trees.move_to_end(rollout)
        else:
            self._remember(rollout, self._read(rollout))
        return self._trees[rollout]

    def store_turn(self, rollout: str, turn: Turn) -> None:
        """Make a committed turn durable."""
        prompt = turn.prompt
        with transaction(self._db):
            self._db.execute(
                "INSERT OR IGNORE INTO prompts VALUES (?, ?, ?, ?, ?)",
                (prompt.id, rollout, prompt.parent.id if prompt.parent else None, prompt.digest, _pack(prompt.ids)),
            )
            self._db.execute(
                "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    turn.id,
                    rollout,
                    prompt.id,
                    turn.digest,
                    _pack(turn.ids),
                    array("d", turn.logprobs).tobytes(),
                    turn.policy_version,
                    turn.temperature,
                    turn.untrainable,
                    json.dumps(turn.message),
                    turn.finish_reason,
                    time.time(),
                ),
            )

    def mark_truncated(self, rollout: str) -> None:
        with transaction(self._db):
            self._db.execute("UPDATE rollouts SET truncated = 1 WHERE id = ?", (rollout,))

    def rows(self, rollout: str) -> RolloutRows:
        """Training rows of all turns of a rollout."""
        self.get(rollout)
        rows, untrainable = build_rows(self.tree(rollout).turns.values())
        return RolloutRows(rollout=rollout, rows=rows, untrainable_turns=untrainable)

    def rows_for_turns(self, turns: Sequence[str]) -> list[RolloutRows]:
        """Training rows of single turns, by rollout.

        Raises:
            NotFoundError: A turn is unknown.
        """
        wanted: dict[str, list[Turn]] = {}
        for turn in dict.fromkeys(turns):
            row = self._db.execute("SELECT rollout FROM turns WHERE id = ?", (turn,)).fetchone()
            if row is None:
                raise NotFoundError(f"No captured turn {turn!r}. It may have been deleted by retention.", param="turns")
            wanted.setdefault(row["rollout"], []).append(self.tree(row["rollout"]).turns[turn])
        result: list[RolloutRows] = []
        for rollout, members in wanted.items():
            rows, untrainable = build_rows(members)
            result.append(RolloutRows(rollout=rollout, rows=rows, untrainable_turns=untrainable))
        return result

    def delete_before(self, unix_time: float) -> int:
        """Delete rollouts made before ``unix_time``; return how many."""
        with transaction(self._db):
            deleted = self._db.execute("DELETE FROM rollouts WHERE created_at < ?", (unix_time,)).rowcount
        self._trees.clear()
        return deleted

    def _remember(self, rollout: str, tree: Tree) -> None:
        self._trees[rollout] = tree
        while len(self._trees) > TREES_IN_MEMORY:
            self._trees.popitem(last=False)

    def _read(self, rollout: str) -> Tree:
        tree = Tree()
        prompts: dict[str, Prompt] = {}
        turns: dict[str, Turn] = {}
        rows = {row["id"]: row for row in self._db.execute("SELECT * FROM prompts WHERE rollout = ?", (rollout,))}
        for row in self._db.execute("SELECT * FROM turns WHERE rollout = ? ORDER BY created_at, rowid", (rollout,)):
            if row["prompt"] not in prompts:
                prompt = rows[row["prompt"]]
                parent = turns[prompt["parent"]] if prompt["parent"] else None
                prompts[prompt["id"]] = Prompt(prompt["id"], parent, prompt["digest"], _unpack(prompt["ids"]))
            logprobs = array("d")
            logprobs.frombytes(row["logprobs"])
            turn = Turn(
                id=row["id"],
                prompt=prompts[row["prompt"]],
                digest=row["digest"],
                ids=_unpack(row["ids"]),
                logprobs=logprobs.tolist(),
                policy_version=row["policy_version"],
                temperature=row["temperature"],
                untrainable=row["untrainable"],
                message=json.loads(row["message"]),
                finish_reason=row["finish_reason"],
            )
            turns[turn.id] = turn
            tree.add(turn)
        return tree

    def _info(self, row: sqlite3.Row) -> RolloutInfo:
        count = self._db.execute("SELECT count(*) FROM turns WHERE rollout = ?", (row["id"],)).fetchone()[0]
        return RolloutInfo(
            id=row["id"],
            api_key="",
            base_path=f"/r/{row['id']}/v1",
            kind=RolloutKind(row["kind"]),
            project=row["project"],
            model=row["model"],
            step=row["step"],
            metadata=json.loads(row["metadata"]),
            turns=count,
            truncated=bool(row["truncated"]),
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _pack(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def _unpack(blob: bytes) -> list[int]:
    ids = array("i")
    ids.frombytes(blob)
    return ids.tolist()
