"""Advantages and losses that a user wrote, named ``module:function``.

They run in the trainer process, so the service loads them only if it was started with a directory for them
(``--user-code``), and only from modules in that directory: whoever operates the service chooses the code, and whoever
trains chooses among it. A module is imported once; a new version of it needs a new trainer process.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from art_backend.errors import BadRequestError
from art_backend.training.algorithms.advantages import AdvantageFunction, Advantages, Rewards
from art_backend.training.algorithms.losses import TokenBatch, TokenLoss


def load_advantage(name: str, directory: Path | None) -> AdvantageFunction:
    """Return a user's advantage function, whose result is checked.

    Args:
        name: ``module:function``; called as an ``AdvantageFunction``.
        directory: Where the service takes user code from; ``None``: nowhere.

    Raises:
        BadRequestError: It may not be loaded or is not there. Calling it: it raised, or returned something else.
    """
    function = _load(name, directory, "options.advantage")

    def advantage(rewards: Rewards, scale: bool) -> Advantages:
        returned = _call(function, name, "options.advantage", [r.copy() for r in rewards], scale)
        try:
            advantages = [np.asarray(a, np.float64) for a in returned]
        except (TypeError, ValueError) as error:
            raise BadRequestError(
                f"{name} must return one array per group: {error}.", param="options.advantage"
            ) from error
        shapes, expected = [a.shape for a in advantages], [r.shape for r in rewards]
        if shapes != expected:
            raise BadRequestError(
                f"{name} returned advantages of shapes {shapes} for rewards of shapes {expected}.",
                param="options.advantage",
            )
        for g, values in enumerate(advantages):
            if not np.isfinite(values).all():
                raise BadRequestError(
                    f"{name} returned {values.tolist()} for the rewards {rewards[g].tolist()} of group {g}; advantages are finite.",
                    param="options.advantage",
                )
        return advantages

    return advantage


def load_loss(name: str, directory: Path | None) -> TokenLoss:
    """Return a user's loss function, whose result is checked.

    Args:
        name: ``module:function``; called as a ``TokenLoss``.
        directory: Where the service takes user code from; ``None``: nowhere.

    Raises:
        BadRequestError: It may not be loaded or is not there. Calling it: it raised, or returned something else.
    """
    function = _load(name, directory, "options.loss")

    def loss(batch: TokenBatch) -> Tensor:
        values = _call(function, name, "options.loss", batch)
        if not isinstance(values, Tensor) or values.shape != batch.logprobs.shape:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise BadRequestError(
                f"{name} must return a tensor with the loss of each of the {batch.logprobs.numel()} tokens; it returned {got}.",
                param="options.loss",
            )
        if torch.is_grad_enabled() and not values.requires_grad:
            raise BadRequestError(
                f"{name} returned a loss that does not depend on batch.logprobs, so nothing can be learned from it.",
                param="options.loss",
            )
        return values

    return loss


def _load(name: str, directory: Path | None, param: str) -> Callable[..., Any]:
    if directory is None:
        raise BadRequestError(
            f"{name} is user code, and this service loads none. Start it with --user-code DIRECTORY "
            "(LocalBackend does so by itself).",
            param=param,
        )
    module_name, _, function_name = name.partition(":")
    stem = directory.joinpath(*module_name.split("."))
    if not stem.with_suffix(".py").is_file() and not (stem / "__init__.py").is_file():
        raise BadRequestError(
            f"There is no module {module_name!r} in {directory}, the service's directory for user code.", param=param
        )
    if str(directory) not in sys.path:
        sys.path.append(str(directory))  # last: a file of the user's never stands in for an installed package
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # Whatever the module raises is the answer to the one who named it.
        raise BadRequestError(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}", param=param
        ) from error
    if not Path(module.__file__ or "").is_relative_to(directory):
        raise BadRequestError(
            f"The name {module_name!r} belongs to an installed package; rename the file in {directory}.", param=param
        )
    function = vars(module).get(function_name)
    if not callable(function):
        raise BadRequestError(f"{module_name} has no function {function_name!r}.", param=param)
    return function


def _call(function: Callable[..., Any], name: str, param: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise BadRequestError(f"{name} raised {type(error).__name__}: {error}", param=param) from error
