"""The interface that a backend offers to the frontend."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from art.model import Model, TrainableModel
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import TrainResult, TrainSFTConfig
    from art.wire import RolloutTree

AnyModel: TypeAlias = "Model[Any, Any]"
AnyTrainableModel: TypeAlias = "TrainableModel[Any, Any]"


@runtime_checkable
class Backend(Protocol):
    """Serves and trains models. ``LocalBackend`` and ``RemoteBackend`` are two.

    >>> isinstance(art.RemoteBackend("http://gpu-box:8000", "key"), art.Backend)
    True
    """

    async def close(self) -> None: ...

    async def register(self, model: "Model[Any, Any]") -> None: ...

    async def train(
        self, model: "TrainableModel[Any, Any]", trajectory_groups: "Iterable[TrajectoryGroup]", **options: Any
    ) -> "TrainResult": ...

    async def train_sft(
        self,
        model: "TrainableModel[Any, Any]",
        trajectories: "Iterable[Trajectory]",
        config: "TrainSFTConfig | None" = None,
        **options: Any,
    ) -> "TrainResult | None": ...

    def _model_inference_name(self, model: "Model[Any, Any]", step: int | None = None) -> str: ...

    async def _get_step(self, model: "TrainableModel[Any, Any]") -> int: ...

    async def _delete_checkpoint_files(self, model: "TrainableModel[Any, Any]", steps_to_keep: list[int]) -> None: ...

    async def _prepare_backend_for_training(
        self, model: "TrainableModel[Any, Any]", config: "dict[str, Any] | None" = None
    ) -> tuple[str, str]:
        """Return the base URL and the key of the model's inference endpoint."""
        ...


class MetricSink(ABC):
    """A backend that keeps metric histories and knows its device costs. ``model.log`` times its training steps."""

    @abstractmethod
    async def record_metrics(
        self, model: "Model[Any, Any]", metrics: Mapping[str, float], *, split: str, step: int
    ) -> None:
        """Store one row. The row is already on the frontend's disk: failing to store it must not raise."""

    def automatic_gpu_cost_per_hour_usd(self, model: "Model[Any, Any]") -> float | None:
        """Hourly cost of a model's devices, if known."""
        return None


class EngineWatch(ABC):
    """A backend that can report whether an engine is starting."""

    @abstractmethod
    async def engine_is_starting(self) -> bool:
        """Whether model calls may be waiting for an engine to start.

        Raises:
            BackendError: The service is broken or gone.
        """


class RolloutSource(ABC):
    """A backend that captures rollouts, each under its own key."""

    @abstractmethod
    async def create_rollout(self, model: "TrainableModel[Any, Any]", step: int | None) -> "tuple[str, str, str]":
        """Return the id, base URL and key of a new rollout, pinned to version ``step`` if given."""

    @abstractmethod
    async def get_rollout(self, rollout_id: str) -> "RolloutTree":
        """Return a rollout with everything captured in it."""
