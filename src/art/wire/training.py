"""Training: what is sent for one step, and what comes back."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from art.wire.base import Wire
from art.wire.rollouts import TokenRow


class Algorithm(StrEnum):
    """Named compositions of advantage, ratio level, surrogate and reduction."""

    GRPO = "grpo"
    """Shao et al. 2024, arXiv:2402.03300: group-normalised advantage, symmetric clip, mean over each trajectory."""
    DAPO = "dapo"
    """Yu et al. 2025, arXiv:2503.14476: clip-higher, all trained tokens of the step weigh the same."""
    DR_GRPO = "dr_grpo"
    """Liu et al. 2025, arXiv:2503.20783: no division by deviations or lengths; the size of a reward keeps its meaning."""
    GSPO = "gspo"
    """Zheng et al. 2025, arXiv:2507.18071: one ratio for each row, the geometric mean over its tokens."""
    CISPO = "cispo"
    """MiniMax 2025, arXiv:2506.13585: the clipped ratio is a weight, so that no token loses its gradient."""
    RLOO = "rloo"
    """Ahmadian et al. 2024, arXiv:2402.14740: a trajectory is compared with the mean of the others in its group."""
    REINFORCE_PLUS_PLUS = "reinforce++"
    """Hu et al. 2025, arXiv:2501.03262: advantages are normalised over the batch instead of the group."""


class Overlong(StrEnum):
    """What happens to a trajectory with a row longer than the model's maximum sequence length."""

    ERROR = "error"
    DROP = "drop"
    TRUNCATE = "truncate"


class TrainTrajectory(Wire):
    """One scored run of the agent.

    Its tokens come from a rollout captured under a key, from single captured turns, and from rows that travel with the
    request.
    """

    reward: FiniteFloat
    rollout: str | None = None
    """Id of a keyed rollout; all of its rows are trained."""
    turns: list[str] = []
    """Ids of captured turns, as found on the sampled choices."""
    rows: list[TokenRow] = []
    metrics: dict[str, float] = {}


class TrainGroup(Wire):
    """Trajectories of one scenario, compared with each other."""

    trajectories: list[TrainTrajectory]
    scenario: str | None = None


class TrainOptions(Wire):
    """Options of one optimiser step. Defaults are the ones that we would use."""

    algorithm: Algorithm = Algorithm.DAPO
    learning_rate: float = Field(default=5e-6, gt=0)
    scale_rewards: bool = True
    """Divide group advantages by the group's standard deviation."""
    epsilon: float | None = Field(default=None, ge=0)
    """Lower clip range of the ratio; ``None`` takes the algorithm's own."""
    epsilon_high: float | None = Field(default=None, ge=0)
    importance_cap: float | None = Field(default=2.0, gt=0)
    """Cap of the token-level truncated importance weight trainer/engine; ``None`` switches the correction off."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || reference) in the loss; the reference is the base model."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    adam_betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    overlong: Overlong = Overlong.DROP
    micro_batch_tokens: int | None = Field(default=None, ge=16)
    """Packed tokens per forward pass; changes memory and speed, never the gradient. ``None`` lets the trainer choose."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps that the batch is cut into."""


class TrainRequest(Wire):
    project: str
    model: str
    groups: list[TrainGroup]
    options: TrainOptions = TrainOptions()
    idempotency_key: str = Field(min_length=8, max_length=128)
    """Repeating a request with the same key returns the first one's job and never trains twice."""


class TrainProgress(Wire):
    """Data of a ``progress`` event."""

    phase: Literal["holding", "preparing", "training", "saving", "publishing", "resuming"]
    done: int = 0
    total: int = 0
    """Units of the phase; for ``training``, packed tokens."""
    message: str | None = None


class TrainResult(Wire):
    """Data of a train job that succeeded."""

    step: int
    """The policy version that is served now. Every train call advances it by one."""
    trained: bool
    """False for an empty step: no group had a learning signal. The new version has the weights of the last one."""
    reason: str | None = None
    """Why nothing was trained."""
    metrics: Annotated[dict[str, FiniteFloat], Field(description="Metrics of the step, by their logged names.")]
    warnings: list[str] = []
    checkpoint: str | None = None
    """Directory of the checkpoint on the backend's machine."""
    details: dict[str, Any] = {}
