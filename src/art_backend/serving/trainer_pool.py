"""The trainer processes: one for each model that trains, one at a time."""

from art.wire import ProcessHealth
from art_backend.serving.policies import ServedPolicy
from art_backend.settings import Settings
from art_backend.store.runs import RunStore
from art_backend.training.process import TrainerProcess
from art_backend.training.types import ModelSetup


class TrainerPool:
    """Starts trainers when they are needed, and ends those that hold the device for another model."""

    def __init__(self, settings: Settings, runs: RunStore) -> None:
        self._settings = settings
        self._runs = runs
        self._trainers: dict[tuple[str, str], TrainerProcess] = {}

    async def get(self, policy: ServedPolicy) -> TrainerProcess:
        """Return the live trainer of a model. One trainer holds the device's memory at a time."""
        key = (policy.project, policy.name)
        for other in [k for k, t in self._trainers.items() if k != key or not t.alive]:
            await self.end(*other)
        if key not in self._trainers:
            _, spec = self._runs.find_model(*key)
            setup = ModelSetup(
                base_path=policy.host.settings.model_path,
                lora=spec.lora,
                full_finetune=spec.full_finetune,
                max_sequence_length=policy.max_sequence_length,
                checkpoints=policy.checkpoints.directory,
                user_code=self._settings.user_code,
            )
            self._trainers[key] = await TrainerProcess.start(
                setup,
                log_path=self._settings.log_dir / "trainer.log",
                threads=self._settings.threads,
                devices=self._settings.placement.trainer_devices,
            )
        return self._trainers[key]

    async def end(self, project: str, name: str) -> None:
        """End the trainer of a model, if there is one."""
        if (trainer := self._trainers.pop((project, name), None)) is not None:
            await trainer.close()

    async def close(self) -> None:
        """End all of them."""
        for key in list(self._trainers):
            await self.end(*key)

    def health(self) -> list[ProcessHealth]:
        return [
            ProcessHealth(
                name=f"trainer {project}/{name}",
                pid=trainer.pid,
                state="ready" if trainer.alive else "failed",
                detail=None if trainer.alive else trainer.describe_death(),
            )
            for (project, name), trainer in self._trainers.items()
        ]
