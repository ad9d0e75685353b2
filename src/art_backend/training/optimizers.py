"""The optimisers, on one flat float32 tensor."""

from typing import Any, Protocol

import torch
from torch import Tensor

from art.wire import Optimizer
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
        _step(self._optimizer, self._weights, gradient, learning_rate, betas, weight_decay)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._optimizer.state[self._weights])

    def load(self, tensors: dict[str, Tensor]) -> None:
        state = {0: {name: tensor.clone() for name, tensor in tensors.items()}} if tensors else {}
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def device_tensors(self) -> list[Tensor]:
        return list(self.tensors().values())


class PagedAdamW8bit:
    """AdamW whose moments are kept in 8 bits, block by block (Dettmers et al. 2022, arXiv:2110.02861), by bitsandbytes.

    On CUDA they move to the host when the device is full.

    Args:
        weights: [P]; updated in place.
    """

    kind = Optimizer.PAGED_ADAMW_8BIT

    def __init__(self, weights: Tensor) -> None:
        from bitsandbytes.optim import PagedAdamW8bit as Implementation  # pyright: ignore[reportMissingImports]

        self._weights = torch.nn.Parameter(weights)
        self._optimizer = Implementation([self._weights], lr=1.0)

    def step(self, gradient: Tensor, *, learning_rate: float, betas: tuple[float, float], weight_decay: float) -> None:
        _step(self._optimizer, self._weights, gradient, learning_rate, betas, weight_decay)

    def tensors(self) -> dict[str, Tensor]:
        state = self._optimizer.state[self._weights]
        return {n: v if isinstance(v, Tensor) else torch.tensor(v) for n, v in state.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if not tensors:
            return
        # Made by the optimiser, so that they are paged, then filled.
        self._optimizer.init_state(self._optimizer.param_groups[0], self._weights, 0, 0)
        state = self._optimizer.state[self._weights]
        for name, tensor in tensors.items():
            if isinstance(state[name], Tensor):
                state[name].copy_(tensor)
            else:
                state[name] = int(tensor)

    def device_tensors(self) -> list[Tensor]:
        return []  # paged: they leave the device by themselves


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
    optimizer: Any, weights: Tensor, gradient: Tensor, rate: float, betas: tuple[float, float], decay: float
) -> None:
    group = optimizer.param_groups[0]
    group["lr"], group["betas"], group["weight_decay"] = rate, betas, decay
    weights.grad = gradient
    optimizer.step()
    weights.grad = None
