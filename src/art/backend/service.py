"""Service calls that do not train: rollouts, checkpoints, metrics, health."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from art.backend import AnyTrainableModel, EngineWatch, MetricSink, RolloutSource
from art.backend.control import ControlClient, path_of
from art.errors import BackendError
from art.terminal import say
from art.wire import (
    API_PREFIX,
    Checkpoint,
    CheckpointList,
    CreateRollout,
    Health,
    MetricHistory,
    MetricRow,
    ModelInfo,
    PruneCheckpoints,
    RolloutInfo,
    RolloutRows,
    RolloutTree,
)

if TYPE_CHECKING:
    from art.model import Model


class ServiceCalls(MetricSink, RolloutSource, EngineWatch):
    """Calls a service by its control API."""

    def __init__(self, client: ControlClient | None) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Nothing stays open between calls."""

    async def get_model(self, project: str, name: str) -> ModelInfo:
        """Return what the service knows about a model."""
        return await (await self._control()).get(path_of(project, name), ModelInfo)

    async def get_health(self) -> Health:
        return await (await self._control()).get(f"{API_PREFIX}/health", Health)

    async def engine_is_starting(self) -> bool:
        processes = (await self.get_health()).processes
        return any(process.name.startswith("engine ") and process.state == "starting" for process in processes)

    async def create_rollout(self, model: AnyTrainableModel, step: int | None) -> tuple[str, str, str]:
        control = await self._control()
        wanted = CreateRollout(project=model.project, model=model.name, step=step)
        info = await control.post(f"{API_PREFIX}/rollouts", wanted, RolloutInfo)
        return info.id, control.url + info.base_path, info.api_key

    async def get_rollout(self, rollout_id: str) -> RolloutTree:
        """Return a rollout with everything captured in it."""
        return await (await self._control()).get(f"{API_PREFIX}/rollouts/{rollout_id}", RolloutTree)

    async def get_rollout_rows(self, rollout_id: str) -> RolloutRows:
        """Return the captured tokens of a rollout, as training sees them."""
        return await (await self._control()).get(f"{API_PREFIX}/rollouts/{rollout_id}/trajectory", RolloutRows)

    async def list_checkpoints(self, model: AnyTrainableModel) -> list[Checkpoint]:
        path = path_of(model.project, model.name, "checkpoints")
        return (await (await self._control()).get(path, CheckpointList)).checkpoints

    async def _delete_checkpoint_files(self, model: AnyTrainableModel, steps_to_keep: list[int]) -> None:
        path = path_of(model.project, model.name, "checkpoints", "prune")
        await (await self._control()).post(path, PruneCheckpoints(keep=steps_to_keep), CheckpointList)

    async def get_metrics(self, project: str, name: str) -> list[MetricRow]:
        """Return the metric history that the service keeps for a model."""
        return (await (await self._control()).get(path_of(project, name, "metrics"), MetricHistory)).rows

    async def record_metrics(
        self, model: "Model[Any, Any]", metrics: Mapping[str, float], *, split: str, step: int
    ) -> None:
        if not model.trainable:  # the service does not know it, and may not even run
            return
        row = MetricRow(step=step, split=split, metrics=dict(metrics))
        try:
            control = await self._control()
            await control.post(path_of(model.project, model.name, "metrics"), MetricHistory(rows=[row]), MetricHistory)
        except BackendError as error:
            say(
                f"warning: the metrics of step {step} are in history.jsonl, but could not be sent to the backend: {error}"
            )

    async def _control(self) -> ControlClient:
        """The client of a running service that speaks our protocol."""
        if self._client is None:
            raise BackendError("The backend is closed.", 503)
        await self._client.check_version()
        return self._client
