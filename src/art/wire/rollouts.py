"""Rollouts: one run of an agent, its key, and the tokens that were captured under it."""

from enum import StrEnum
from typing import Any, Literal

from art.wire.base import Name, Step, Wire


class RolloutKind(StrEnum):
    """How model calls are assigned to a rollout."""

    KEYED = "keyed"
    """Created by a client; has its own key."""
    AMBIENT = "ambient"
    """Created by the service for calls with a model's own key; trajectories refer to its turns."""


class CreateRollout(Wire):
    """Start a rollout with its own key."""

    project: Name
    model: Name
    """The model's name within the project."""
    step: Step | None = None
    """Pin the rollout to one policy version; ``None`` follows the latest."""
    metadata: dict[str, Any] = {}


class RolloutInfo(Wire):
    """A rollout, how to reach it, and how many turns it has."""

    id: str
    api_key: str
    """Valid only for this rollout's data plane."""
    base_path: str
    """Path of the rollout's endpoint below the service's URL: ``/r/{id}/v1``."""
    kind: RolloutKind
    project: str
    model: str
    step: int | None
    metadata: dict[str, Any] = {}
    turns: int = 0
    """Number of sampled turns captured so far."""
    truncated: bool = False
    """Whether a request of this rollout was refused because its prompt no longer fits the context."""


class StructuredSpan(Wire):
    """Tokens of a row sampled under a structure: from the allowed tokens, not the whole vocabulary.

    The trainer needs it to see the distribution that was sampled. ``start`` is where the completion began.
    """

    start: int
    stop: int
    structured_outputs: dict[Literal["json", "regex", "choice", "grammar"], Any]
    """One entry, as in the engine contract."""
    stop_token_ids: list[int]
    """Ids that could end the completion."""


class TokenRow(Wire):
    """One training row: the ids that the engine was fed and sampled, in order. All lists have one length, T."""

    token_ids: list[int]
    sampled: list[bool]
    """True where this row trains the token. A sampled token that another row trains is False here."""
    logprobs: list[float] | None
    """Log-probability of each sampled token under the policy that sampled it; 0.0 elsewhere. ``None`` where unknown:
    the trainer takes the policy's own, as it is before the step."""
    policy_versions: list[int]
    """The policy version that sampled each token; -1 for observed tokens."""
    temperature: float
    """The temperature that every trained token of this row was sampled at."""
    structures: list[StructuredSpan] = []
    """Spans of trained tokens that were sampled under a structure."""


class RolloutRows(Wire):
    """The captured tokens of a rollout, as training sees them."""

    rollout: str
    rows: list[TokenRow]
    untrainable_turns: list[str] = []
    """One sentence per turn that was sampled at settings that cannot be trained, naming the setting."""


class TreeNode(Wire):
    """The ids that one turn, or the messages between two turns, added to a rollout."""

    id: str
    parent: str | None
    """The node before, ``None`` at the beginning of a conversation."""
    keep: int
    """Number of ids that stand before ``token_ids``: of the parent's path, its first ``keep``."""
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    """Tools that the conversation began with."""
    token_ids: list[int]
    sampled: bool
    """True for what the model sampled; the fields below are set then."""
    logprobs: list[float] = []
    policy_version: int | None = None
    sampling: dict[str, Any] = {}
    untrainable: str | None = None
    """Why this turn cannot be trained; ``None`` if it can."""
    finish_reason: str | None = None


class RolloutTree(RolloutInfo):
    """A rollout with everything captured in it."""

    nodes: list[TreeNode] = []
    """In the order in which they were sampled, parents first."""
