"""The state that a trainer keeps between two steps."""

from art.wire import Optimizer
from art_backend.errors import BadRequestError
from art_backend.training.optimizers import FlatOptimizer, make_optimizer
from art_backend.training.policy.base import Policy
from art_backend.training.policy.parking import Parking
from art_backend.training.state import TrainerState


class Loaded:
    """A model in memory, and where its training stands."""

    def __init__(self, policy: Policy, optimizer: FlatOptimizer, state: TrainerState) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.state = state
        self.changed = False
        """Whether it is no longer what the checkpoint of ``state.step`` says."""
        self._parking = Parking()

    def leave_device(self) -> None:
        """Keep everything in the CPU's memory, if it is not there anyway."""
        if self.policy.device.type != "cpu":
            frozen, changing = self.policy.device_tensors()
            self._parking.leave(frozen, [*changing, *self.optimizer.device_tensors()])

    def return_to_device(self) -> None:
        self._parking.come_back()

    def choose_optimizer(self, kind: Optimizer) -> None:
        """Raises BadRequestError: Training began with another one, whose moments this one cannot read."""
        if kind is self.optimizer.kind:
            return
        if self.state.optimizer_steps:
            raise BadRequestError(
                f"optimizer={kind.value!r}: the first {self.state.optimizer_steps} updates of this model were made by "
                f"{self.optimizer.kind.value!r}, whose moments are in its checkpoints. Go on with that one.",
                param="options.optimizer",
            )
        self.optimizer = make_optimizer(kind, self.policy.weights)
