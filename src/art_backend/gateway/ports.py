"""What the gateway needs from the rest of the service.

``auth`` turns a key into an ``Identity``; ``model_directory`` implements ``ModelDirectory``. The gateway's own tests use
small implementations of these protocols around a scripted engine.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from art_backend.engines.contract import EngineVerbs
from art_backend.tokens.render import ChatRenderer


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls the data plane."""

    kind: Literal["service", "model", "rollout"]
    """``service``: the service's own key, not captured. ``model``: a registered model's key, captured as ambient
    turns. ``rollout``: one rollout's key."""
    project: str | None = None
    model: str | None = None
    rollout: str | None = None
    step: int | None = None
    """The policy version that the rollout is pinned to."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to sample from one policy version; the version stays loaded while the lease is held."""

    engine: EngineVerbs
    engine_model: str
    """The name that the engine knows this version by."""
    policy_version: int


class ServedModel(Protocol):
    """One registered model, or a bare base model."""

    @property
    def project(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int:
        """The latest policy version."""
        ...

    @property
    def renderer(self) -> ChatRenderer: ...
    @property
    def max_sequence_length(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    def lease(self, step: int | None = None) -> AbstractAsyncContextManager[Lease]:
        """Lease the latest version, or version ``step``.

        Entering waits while the policy is being updated. It raises ``BusyError`` when that takes longer than the
        configured bound, ``NotFoundError`` for a version that no longer exists, and ``EngineFailedError`` when the
        engine is dead.
        """
        ...


class ModelDirectory(Protocol):
    def resolve(self, identity: Identity, requested: str) -> tuple[ServedModel, int | None]:
        """Find the model and pinned step that ``requested`` names for this caller.

        Accepts ``name``, ``name@step`` and the base model's name. A rollout or model key only reaches its own model.

        Raises:
            NotFoundError: No such model for this caller; the message lists those that exist.
        """
        ...

    def list_names(self, identity: Identity) -> list[str]:
        """Names that ``resolve`` accepts for this caller."""
        ...
