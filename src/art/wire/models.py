"""Models: registration, description, checkpoints and metrics."""

from typing import Any

from pydantic import Field, FiniteFloat

from art.wire.base import Name, Step, Wire


class LoraSpec(Wire):
    """The shape of the trained LoRA adapter (Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1, le=512)
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by ``alpha / rank``."""
    target_modules: list[str] | None = None
    """Names of the linear layers that get an adapter; ``None`` means every linear layer except the output head."""
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Seed of the adapter's initial weights."""


class RegisterModel(Wire):
    """Register a model with the service. Idempotent: the natural key is (project, name)."""

    project: Name
    """A name is at most 128 letters, digits, ``.``, ``_`` and ``-``, and not dots alone."""
    name: Name
    base_model: str = Field(min_length=1)
    """A local path, a hub id, or a name the service resolves."""
    lora: LoraSpec = LoraSpec()
    full_finetune: bool = False
    """Train all weights instead of an adapter. The model gets its own engine, which serves only the latest version."""
    init_adapter: str | None = None
    """Where a model without checkpoints starts: a PEFT adapter's directory on the backend's machine, or ``project/name@step``
    (or ``@latest``) of another model of the service. ``None`` begins at the base model with a fresh adapter."""
    max_sequence_length: int | None = Field(default=None, ge=16)
    """Maximum prompt plus completion, in tokens; ``None`` uses the engine's default for the model."""
    metadata: dict[str, Any] = {}
    """Free for the caller's use; returned unchanged."""


class ModelInfo(Wire):
    """A model as the service knows it."""

    id: str
    project: str
    name: str
    base_model: str
    lora: LoraSpec
    full_finetune: bool = False
    """Whether all weights are trained; ``lora`` has no meaning then."""
    max_sequence_length: int
    step: int
    """The latest policy version; 0 before the first training step."""
    inference_name: str
    """The model name that requests use for the latest version: an alias of ``{name}@{step}``."""
    inference_api_key: str
    """Key for this model's data plane; its calls are captured as turns that trajectories may refer to."""
    warnings: list[str] = []
    """What does not work with this model, such as tool calls that cannot be parsed back."""
    metadata: dict[str, Any] = {}


class ModelList(Wire):
    """The models that the service serves."""

    models: list[ModelInfo]


class Checkpoint(Wire):
    """One saved policy version."""

    step: int
    path: str
    """Directory on the backend's machine; holds a PEFT adapter, or a whole model, that loads anywhere."""
    created_at: float
    size_bytes: int


class CheckpointList(Wire):
    """A model's saved policy versions, in order."""

    checkpoints: list[Checkpoint]


class PruneCheckpoints(Wire):
    """Which checkpoints to keep; the others are deleted."""

    keep: list[Step]
    """Steps to keep. The latest step is always kept."""


class MetricRow(Wire):
    """Metrics of one step. The natural key is (step, split): sending a row again merges its metrics into the first."""

    step: Step
    split: str
    metrics: dict[str, FiniteFloat]
    recorded_at: float | None = None
    """Unix time in seconds; set by the service when absent."""


class MetricHistory(Wire):
    """Rows of a model's metrics, in order."""

    rows: list[MetricRow]
