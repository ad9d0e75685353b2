"""Training: what is sent for one step, and what comes back."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from art.wire.base import Name, Step, Wire
from art.wire.rollouts import TokenRow

USER_FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
"""``package.module:function``"""


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
    """The treatment of a trajectory with a row longer than the model's maximum sequence length."""

    ERROR = "error"
    DROP = "drop"
    TRUNCATE = "truncate"


class TrainerKind(StrEnum):
    """Which trainer computes the update. Each can continue from the other's checkpoints."""

    ART = "art"
    TRL = "trl"
    """TRL's ``GRPOTrainer``, fed with the captured rows; needs the extra ``trl``. Slower, and lacks some options."""


class KlPlace(StrEnum):
    """How the distance to the reference is applied."""

    LOSS = "loss"
    """The k3 estimate is a term of the loss."""
    ADVANTAGE = "advantage"
    """A token's advantage is lowered by its log-ratio to the reference, as far as that is above the update's mean."""


class Schedule(StrEnum):
    """The learning rate after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Optimizer(StrEnum):
    """Which optimiser takes the step."""

    ADAMW = "adamw"
    """Moments in float32."""
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    """Moments in 8 bits, paged to the host when the GPU is full (bitsandbytes; needs CUDA)."""


class Conversation(Wire):
    """Messages whose tokens were not captured. The model's chat template renders them."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    """As in the chat completions API."""
    tools: list[dict[str, Any]] | None = None
    trained: list[int] | None = None
    """Indices of the assistant messages that are trained; ``None`` trains all of them."""


class Example(Wire):
    """One run of an agent, and where its tokens are.

    They come from a rollout captured under a key, from single captured turns, from rows that travel with the request, or
    from conversations that were not captured at all.
    """

    rollout: Name | None = None
    """Id of a keyed rollout; all of its rows are trained."""
    turns: list[str] = []
    """Ids of captured turns, as found on the sampled choices."""
    rows: list[TokenRow] = []
    conversations: list[Conversation] = []
    """Their log-probabilities are taken from the policy that is trained, as it is before the step."""


class TrainTrajectory(Example):
    """One scored run of the agent. If it has no tokens, its reward still counts in its group."""

    reward: FiniteFloat
    metrics: dict[str, float] = {}


class TrainGroup(Wire):
    """Trajectories of one scenario, compared with each other."""

    trajectories: list[TrainTrajectory]
    scenario: str | None = None


class TrainOptions(Wire):
    """Options of one training step. The defaults are recommended values."""

    trainer: TrainerKind = TrainerKind.ART
    algorithm: Algorithm = Algorithm.DAPO
    advantage: str | None = Field(default=None, pattern=USER_FUNCTION)
    """``module:function`` that computes advantages instead of the algorithm. The service must allow user code."""
    loss: str | None = Field(default=None, pattern=USER_FUNCTION)
    """``module:function`` that computes each token's loss instead of the algorithm. The service must allow user code."""
    learning_rate: float = Field(default=5e-6, gt=0)
    schedule: Schedule = Schedule.CONSTANT
    """How the rate falls after the warm-up, to reach zero after ``total_steps``. Steps are policy versions."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly; the last of them has the full rate."""
    total_steps: int | None = Field(default=None, ge=1)
    """Steps of the whole run; required unless ``schedule`` is constant."""
    scale_rewards: bool = True
    """Divide group advantages by the group's standard deviation."""
    epsilon: float | None = Field(default=None, ge=0)
    """Lower clip range of the ratio; ``None`` takes the algorithm's own."""
    epsilon_high: float | None = Field(default=None, ge=0)
    importance_cap: float | None = Field(default=2.0, gt=0)
    """Cap of the token-level truncated importance weight trainer/engine; ``None`` disables the correction."""
    negative_advantage_cap: float | None = Field(default=None, ge=1)
    """Largest ratio, correction included, with which a token of negative advantage is pushed away; ``None``: no such cap."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the distance KL(policy || reference)."""
    kl_in: KlPlace = KlPlace.LOSS
    kl_reference_step: Step = 0
    """The policy version that is the reference; 0 is the base model, with the adapter disabled."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy of the sampled tokens' distributions, which the loss rewards."""
    optimizer: Optimizer = Optimizer.ADAMW
    max_grad_norm: float = Field(default=1.0, gt=0)
    adam_betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    overlong: Overlong = Overlong.DROP
    micro_batch_tokens: int | None = Field(default=None, ge=16)
    """Packed tokens per forward pass; changes memory and speed, never the gradient. ``None`` lets the trainer choose."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps that the batch is cut into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the batch, each of ``minibatches`` optimiser steps."""
    gradient_checkpointing: bool = False
    """Keep one activation per layer and recompute the others: far less memory, about a third more time."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.schedule is not Schedule.CONSTANT and self.total_steps is None:
            raise ValueError(
                f"schedule={self.schedule.value!r} needs total_steps, the number of steps of the whole run"
            )
        if self.total_steps is not None and self.warmup_steps > self.total_steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} is more than total_steps={self.total_steps}")
        return self


class TrainRequest(Wire):
    """One training step."""

    project: Name
    model: Name
    groups: list[TrainGroup]
    options: TrainOptions = TrainOptions()
    idempotency_key: str = Field(min_length=8, max_length=128)
    """Repeating a request with the same key returns the first one's job and never trains twice; another request under it is refused."""


class SftOptions(Wire):
    """Options of supervised fine-tuning."""

    learning_rates: list[Annotated[FiniteFloat, Field(ge=0)]] = Field(default=[5e-5], min_length=1)
    """One rate per batch, or a single one for all."""
    batch_size: int = Field(default=2, ge=1)
    """Examples per optimiser step."""
    train_on: Literal["assistant", "all"] = "assistant"
    """Which tokens are trained: the assistant's, or all."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    adam_betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    overlong: Overlong = Overlong.DROP
    micro_batch_tokens: int | None = Field(default=None, ge=16)
    """Packed tokens per forward pass; changes memory and speed, never the gradient. ``None`` lets the trainer choose."""


class TrainSftRequest(Wire):
    """Supervised fine-tuning: batches of examples in the order given, and one new version at the end.

    Captured trajectories are trained by their exact tokens, whatever their sampling settings.
    """

    project: Name
    model: Name
    examples: list[Example] = Field(min_length=1)
    options: SftOptions = SftOptions()
    idempotency_key: str = Field(min_length=8, max_length=128)
    """Repeating a request with the same key returns the first one's job and never trains twice; another request under it is refused."""


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
    """The policy version now served. Every train call advances it by one."""
    trained: bool
    """False for an empty step: no group had a learning signal. The new version keeps the previous weights."""
    reason: str | None = None
    """Why nothing was trained."""
    metrics: Annotated[dict[str, FiniteFloat], Field(description="Metrics of the step, by their logged names.")]
    warnings: list[str] = []
    checkpoint: str | None = None
    """Directory of the checkpoint on the backend's machine."""
    details: dict[str, Any] = {}
