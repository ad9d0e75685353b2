"""A model that learns, driven by verbs: load it, add gradients to its policy, ``step``, ``save``.

``Trainer`` strings these together into the job of a training step; nothing here knows what a step is made of.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from art.wire import Optimizer, SftOptions, TrainOptions
from art_backend.errors import BadRequestError, ModelNotAvailableError, TrainerFailedError
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.optimizers import FlatAdamW, FlatOptimizer, load_optimizer, make_optimizer
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.attention import Kind
from art_backend.training.policy.base import Policy
from art_backend.training.policy.full import FullPolicy
from art_backend.training.policy.proof import prove
from art_backend.training.state import (
    TrainerState,
    fingerprint_base,
    read_state,
    read_tensors,
    write_state,
    write_tensors,
)
from art_backend.training.types import ModelSetup

MAX_NONFINITE = 3
"""Skipped updates in a row after which training stops."""

_RNG = "rng_state"


class Learner:
    """A model in memory, its optimiser, and where its training stands.

    Add gradients to ``policy.gradient``, then call ``step``.
    """

    def __init__(self, policy: Policy, optimizer: FlatOptimizer, state: TrainerState) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.state = state
        self.changed = False
        """Whether it differs from the checkpoint of ``state.step``."""
        self._parking = Parking()

    @classmethod
    def load(cls, setup: ModelSetup, directory: Path | None, *, attention: Kind | None = None) -> "Learner":
        """Load the base model and the checkpoint in ``directory``; ``None`` starts with a fresh adapter.

        Args:
            attention: How packed trees attend; ``None`` takes the device's fastest.

        Raises:
            ModelNotAvailableError: The model cannot be loaded or does not follow a tree, or the checkpoint belongs to another one.
            StorageFailedError: The checkpoint cannot be read.
        """
        policy = open_policy(setup, attention)
        prove(policy, str(setup.base_path))
        base_model = fingerprint_base(setup.base_path)
        torch.manual_seed(setup.lora.seed)
        if directory is None:
            return cls(policy, FlatAdamW(policy.weights), TrainerState(step=0, base_model=base_model))
        state = read_state(directory)
        if state.base_model != base_model:
            raise ModelNotAvailableError(
                f"The checkpoint {directory} was trained on another base model than {setup.base_path}. "
                "Register the model under a new name, or with the base model that it was trained on.",
                param="base_model",
            )
        policy.load(directory)
        tensors = read_tensors(directory)
        if not tensors:
            return cls(policy, FlatAdamW(policy.weights), state)
        torch.set_rng_state(tensors.pop(_RNG))
        return cls(policy, load_optimizer(policy.weights, tensors), state)

    def choose_optimizer(self, kind: Optimizer) -> None:
        """Raises BadRequestError: Training began with another optimiser, whose moments this one cannot read."""
        if kind is self.optimizer.kind:
            return
        if self.state.optimizer_steps:
            raise BadRequestError(
                f"optimizer={kind.value!r}: the first {self.state.optimizer_steps} updates of this model were made by "
                f"{self.optimizer.kind.value!r}, whose moments are in its checkpoints. Continue with that optimizer.",
                param="options.optimizer",
            )
        self.optimizer = make_optimizer(kind, self.policy.weights)

    def step(self, options: TrainOptions | SftOptions, learning_rate: float) -> float:
        """Clip the gradient and update the weights. A gradient that is not finite is skipped.

        Returns:
            The gradient's norm before clipping; the update was skipped if it is not finite.

        Raises:
            TrainerFailedError: The gradient was not finite three times in a row.
        """
        policy, state = self.policy, self.state
        self.changed = True
        norm = policy.gradient_norm()
        if not math.isfinite(norm):
            state.nonfinite_in_a_row += 1
            if state.nonfinite_in_a_row >= MAX_NONFINITE:
                raise TrainerFailedError(
                    f"The gradient was not finite {MAX_NONFINITE} times in a row. Lower the learning rate, or look for extreme "
                    "rewards; the last checkpoint is intact."
                )
            return norm
        if norm > options.max_grad_norm:
            policy.gradient.mul_(options.max_grad_norm / norm)
        self.optimizer.step(
            policy.gradient,
            learning_rate=learning_rate,
            betas=options.adam_betas,
            weight_decay=options.weight_decay,
        )
        policy.publish_weights()
        state.nonfinite_in_a_row = 0
        state.optimizer_steps += 1
        return norm

    def save(self, store: CheckpointStore, step: int, *, changed: bool) -> Path:
        """Save the checkpoint of ``step``; unchanged weights are linked to the step before."""
        self.state = state = replace(self.state, step=step)
        if not changed and step > 1:
            return store.link(step - 1, step, lambda directory: write_state(directory, state))

        def write(directory: Path) -> None:
            self.policy.save(directory)
            write_tensors(directory, {**self.optimizer.tensors(), _RNG: torch.get_rng_state()})
            write_state(directory, state)

        return store.save(step, write)

    def leave_device(self) -> None:
        """Move everything to the CPU's memory, unless it is already there."""
        if self.policy.device.type != "cpu":
            frozen, changing = self.policy.device_tensors()
            self._parking.leave(frozen, [*changing, *self.optimizer.device_tensors()])

    def return_to_device(self) -> None:
        self._parking.come_back()


def open_policy(setup: ModelSetup, attention: Kind | None) -> Policy:
    """Load the base model, with a fresh adapter unless all weights are trained."""
    if setup.full_finetune:
        return FullPolicy(setup.base_path, precision=setup.precision, attention=attention)
    return AdapterPolicy(
        setup.base_path,
        setup.lora,
        precision=setup.precision,
        attention=attention,
        max_length=setup.max_sequence_length,
    )


@dataclass(slots=True)
class _Place:
    storage: torch.UntypedStorage
    copy: torch.UntypedStorage


class Parking:
    """Moves tensors from a device to the CPU's memory and back; every tensor, view and hook stays the same object.

    Storages are what moves: their content is copied, and they are emptied, which frees the memory.
    """

    def __init__(self) -> None:
        self._frozen: list[_Place] = []
        """Copies of what never changes; made once and kept."""
        self._away: list[_Place] = []

    def leave(self, frozen: Iterable[Tensor], changing: Iterable[Tensor]) -> None:
        """Copy the tensors, ``frozen`` ones at the first call only, then free the device's memory.

        Args:
            frozen: The same tensors each time. Some may share storages.
            changing: Tensors whose content may differ at each call.

        Raises:
            ValueError: A tensor does not own its memory, such as a view of a mapped file. Nothing was moved.
        """
        if self._away:
            return
        frozen, changing = list(frozen), list(changing)
        for tensor in (*frozen, *changing):
            if not tensor.untyped_storage().resizable():
                raise ValueError(
                    f"A tensor of shape {list(tensor.shape)} cannot leave the {tensor.device.type}: its memory belongs to a file or"
                    " to another library. Clone it first."
                )
        self._frozen = self._frozen or _copy(frozen)
        self._away = self._frozen + _copy(changing)
        for place in self._away:
            place.storage.resize_(0)

    def come_back(self) -> None:
        """Move everything back to where it was."""
        for place in self._away:
            place.storage.resize_(place.copy.nbytes())
            place.storage.copy_(place.copy)
        self._away = []


def _copy(tensors: Iterable[Tensor]) -> list[_Place]:
    """A copy in the CPU's memory of each storage behind ``tensors``."""
    storages = {storage.data_ptr(): storage for t in tensors if (storage := t.untyped_storage()).nbytes()}
    return [_Place(storage, torch.UntypedStorage(storage.nbytes()).copy_(storage)) for storage in storages.values()]
