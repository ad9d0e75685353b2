"""Ambient rollouts: the trees of conversations that come in under a model's own key.

All those conversations share a tree. A new one begins with each policy version, and when the last has grown large; a
conversation that began in an older one goes on there for as long as that is among the most recent, also after a restart. What falls
out stays on disk, where training finds it.
"""

from collections import deque
from dataclasses import dataclass

from art.wire import RolloutKind
from art_backend.gateway.ports import ServedModel
from art_backend.gateway.sources import Source
from art_backend.store.captures import CaptureStore
from art_backend.tokens.tree import Tree

RECENT = 4
"""Ambient rollouts of one model whose conversations can be continued."""

MAX_IDS = 2_000_000
"""Ids after which an ambient rollout is followed by another."""


@dataclass(slots=True)
class _Ambient:
    rollout: str
    version: int
    tree: Tree


class AmbientRollouts:
    """Finds the rollout that a conversation under a model key belongs to."""

    def __init__(self, captures: CaptureStore) -> None:
        self._captures = captures
        self._recent: dict[tuple[str, str], deque[_Ambient]] = {}
        self._deletions = captures.deletions

    def find(self, model: ServedModel, step: int | None, source: Source) -> tuple[str, Tree]:
        """The rollout, and its tree, that knows most of what is said; the newest if none knows any of it."""
        if self._deletions != self._captures.deletions:
            self._deletions = self._captures.deletions
            self._recent.clear()
        recent = self._recent.get((model.project, model.name))
        if recent is None:
            recent = self._recent[model.project, model.name] = self._restore(model)
        version = model.step if step is None else step
        known = [(source.depth(ambient.tree), ambient) for ambient in recent]
        best, ambient = max(known, key=lambda pair: pair[0], default=(0, None))
        if ambient is None or not best:
            ambient = next((a for a in recent if a.version == version and a.tree.size < MAX_IDS), None)
        if ambient is None:
            info = self._captures.create_rollout(model.project, model.name, kind=RolloutKind.AMBIENT)
            ambient = _Ambient(info.id, version, self._captures.tree(info.id))
            recent.appendleft(ambient)
        return ambient.rollout, ambient.tree

    def _restore(self, model: ServedModel) -> deque[_Ambient]:
        """The rollouts whose conversations could be continued before the service was restarted."""
        restored: deque[_Ambient] = deque(maxlen=RECENT)
        for rollout in self._captures.latest_ambient(model.project, model.name, RECENT):
            tree = self._captures.tree(rollout)
            version = max((turn.policy_version for turn in tree.turns.values()), default=-1)
            restored.append(_Ambient(rollout, version, tree))
        return restored
