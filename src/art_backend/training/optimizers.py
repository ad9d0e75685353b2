"""The optimisers, on one flat float32 tensor, and the learning rate of a step."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from art.wire import Optimizer, Schedule, TrainOptions
from art_backend.errors import BadRequestError


class FlatOptimizer(Protocol):
    """Updates flat weights [P] in place."""

    kind: Optimizer

    def step(self, gradient: Tensor, *, learning_rate: float, betas: tuple[float, float], weight_decay: float) -> None:
        """Take one step along ``gradient`` [P]."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state; empty before the first update."""
        ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...

    def device_tensors(self) -> list[Tensor]:
        """State that is on the device between steps."""
        ...


class FlatAdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) by ``torch.optim``.

    Args:
        weights: [P]; updated in place.
    """

    kind = Optimizer.ADAMW

    def __init__(self, weights: Tensor) -> None:
        self._weights = torch.nn.Parameter(weights)  # shares the storage
        self._optimizer = torch.optim.AdamW([self._weights], lr=1.0, fused=True)

    def step(self, gradient: Tensor, *, learning_rate: float, betas: tuple[float, float], weight_decay: float) -> None:
        _step(self._optimizer, [self._weights], [gradient], learning_rate, betas, weight_decay)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._optimizer.state[self._weights])

    def load(self, tensors: dict[str, Tensor]) -> None:
        state = {0: {name: tensor.clone() for name, tensor in tensors.items()}} if tensors else {}
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def device_tensors(self) -> list[Tensor]:
        return list(self.tensors().values())


LARGEST_PART = 2**30
"""Most weights that bitsandbytes gets at once. It counts them in 32 bits, and from 2^31 on would update others, or none."""

_WEIGHTS_A_NUMBER = {"state1": 1, "state2": 1, "absmax1": 256, "absmax2": 256}
"""How many weights share a number of the 8-bit state, for what is cut as the weights are: the moments, and their blocks' scales."""


class PagedAdamW8bit:
    """AdamW whose moments are kept in 8 bits, block by block (Dettmers et al. 2022, arXiv:2110.02861), by bitsandbytes.

    On CUDA they move to the host when the device is full. The weights are cut between blocks, so neither the update nor the
    state that is saved depends on how.

    Args:
        weights: [P]; updated in place.
        largest: Most weights of a part, a multiple of 256.
    """

    kind = Optimizer.PAGED_ADAMW_8BIT

    def __init__(self, weights: Tensor, *, largest: int = LARGEST_PART) -> None:
        from bitsandbytes.optim import PagedAdamW8bit as Implementation  # pyright: ignore[reportMissingImports]

        # Parts of about the same size: bitsandbytes keeps the moments of small ones in 32 bits.
        count = -(-weights.numel() // largest)
        self._size = -(-weights.numel() // (256 * count)) * 256
        self._parts = [torch.nn.Parameter(part) for part in weights.split(self._size)]
        self._optimizer = Implementation(self._parts, lr=1.0)

    def step(self, gradient: Tensor, *, learning_rate: float, betas: tuple[float, float], weight_decay: float) -> None:
        _step(self._optimizer, self._parts, gradient.split(self._size), learning_rate, betas, weight_decay)

    def tensors(self) -> dict[str, Tensor]:
        first, *others = (self._optimizer.state[part] for part in self._parts)
        found = {name: value if isinstance(value, Tensor) else torch.tensor(value) for name, value in first.items()}
        if others:
            found |= {
                n: torch.cat([t.cpu(), *(o[n].cpu() for o in others)])
                for n, t in found.items()
                if n in _WEIGHTS_A_NUMBER
            }
        return found

    def load(self, tensors: dict[str, Tensor]) -> None:
        if not tensors:
            return
        for i, part in enumerate(self._parts):
            # Made by the optimiser, so that they are paged, then filled.
            self._optimizer.init_state(self._optimizer.param_groups[0], part, 0, i)
            state = self._optimizer.state[part]
            for name, tensor in tensors.items():
                if name in _WEIGHTS_A_NUMBER:
                    state[name].copy_(tensor.split(self._size // _WEIGHTS_A_NUMBER[name])[i])
                elif isinstance(state[name], Tensor):
                    state[name].copy_(tensor)
                else:
                    state[name] = int(tensor)

    def device_tensors(self) -> list[Tensor]:
        """The scales of blocks; the moments are paged and leave the device by themselves."""
        states = (self._optimizer.state[part] for part in self._parts)
        return [tensor for state in states for name, tensor in state.items() if name.startswith("absmax")]


def make_optimizer(kind: Optimizer, weights: Tensor) -> FlatOptimizer:
    """Raises BadRequestError for one that cannot work here."""
    if kind is Optimizer.ADAMW:
        return FlatAdamW(weights)
    if weights.device.type != "cuda":
        raise BadRequestError(
            f"optimizer={kind.value!r} needs a CUDA device; this trainer computes on the {weights.device.type}. "
            f"Choose optimizer={Optimizer.ADAMW.value!r}.",
            param="options.optimizer",
        )
    try:
        return PagedAdamW8bit(weights)
    except ImportError as error:
        raise BadRequestError(
            f"optimizer={kind.value!r} needs bitsandbytes: pip install 'art-trainer[bitsandbytes]' ({error}).",
            param="options.optimizer",
        ) from error


def load_optimizer(weights: Tensor, tensors: dict[str, Tensor]) -> FlatOptimizer:
    """The optimiser that wrote ``tensors``, with that state."""
    kind = Optimizer.PAGED_ADAMW_8BIT if "state1" in tensors else Optimizer.ADAMW
    optimizer = make_optimizer(kind, weights)
    optimizer.load(tensors)
    return optimizer


def _step(
    optimizer: Any,
    parts: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rate: float,
    betas: tuple[float, float],
    decay: float,
) -> None:
    group = optimizer.param_groups[0]
    group["lr"], group["betas"], group["weight_decay"] = rate, betas, decay
    for part, gradient in zip(parts, gradients, strict=True):
        part.grad = gradient
    optimizer.step()
    for part in parts:
        part.grad = None


def learning_rate(options: TrainOptions, step: int) -> float:
    """The rate of training step ``step`` (1, 2, …), with W = ``warmup_steps`` and T = ``total_steps``.

    It depends on the step's number alone, so resuming needs no state.

    Rising: rate · step / W while step ≤ W. Then, with p = (step − W − 1) / (T − W): linear rate · (1 − p), cosine
    rate · (1 + cos πp) / 2 (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5). The last step is not wasted on a rate of zero.

    Raises:
        BadRequestError: A schedule that falls has ended before this step.
    """
    warmup, total = options.warmup_steps, options.total_steps
    if step <= warmup:
        return options.learning_rate * step / warmup
    if options.schedule is Schedule.CONSTANT or total is None:
        return options.learning_rate
    if step > total:
        raise BadRequestError(
            f"Step {step} is past the end of the {options.schedule.value} schedule (total_steps={total}). "
            'Raise total_steps, or choose schedule="constant".',
            param="options.total_steps",
        )
    p = (step - warmup - 1) / (total - warmup)
    falling = 1 - p if options.schedule is Schedule.LINEAR else (1 + math.cos(math.pi * p)) / 2
    return options.learning_rate * falling
