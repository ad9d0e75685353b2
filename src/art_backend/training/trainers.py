"""The trainers of one model: whichever a step asks for holds the model, and goes on from the other's checkpoint."""

from art.wire import TrainerKind
from art_backend.training.metrics import Progress
from art_backend.training.trainer import Trainer
from art_backend.training.types import AnyInput, ModelSetup, StepInput, StepOutput


class Trainers:
    """Trains one model, each step with the trainer that its options name."""

    def __init__(self, setup: ModelSetup) -> None:
        self._setup = setup
        self._kind = TrainerKind.ART
        self._trainer = Trainer(setup)

    def train(self, step: AnyInput, on_progress: Progress = lambda done, total: None) -> StepOutput:
        """See ``Trainer.train``. Raises BadRequestError, too, for a trainer that is not installed."""
        kind = step.options.trainer if isinstance(step, StepInput) else TrainerKind.ART
        if kind is not self._kind:
            trainer = _make(kind, self._setup)
            self._trainer.release()
            self._kind, self._trainer = kind, trainer
        return self._trainer.train(step, on_progress)

    def rest(self) -> None:
        """Keep the model in the CPU's memory until the next step."""
        self._trainer.rest()

    def release(self) -> None:
        """Forget the model and give its memory back."""
        self._trainer.release()


def _make(kind: TrainerKind, setup: ModelSetup) -> Trainer:
    if kind is TrainerKind.ART:
        return Trainer(setup)
    from art_backend.training.trl import TrlTrainer

    return TrlTrainer(setup)
