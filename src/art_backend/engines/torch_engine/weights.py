"""Whole weights: another version of the model, read from a Hugging Face folder into the place of the one that is served."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn


class WeightsError(ValueError):
    """The weights cannot be served; the message says why. Those that were served are still there."""


def read_into(model: nn.Module, path: Path) -> None:
    """Copy the weights of ``path`` into ``model``, in the model's own type.

    Every name and shape is checked before the first weight is changed.

    Raises:
        WeightsError: A file cannot be read, or the weights are another model's. Nothing was changed.
        SafetensorError, OSError: Reading failed half-way: the model is now neither the old one nor the new one.
    """
    targets = dict(model.named_parameters())
    aliases = model.state_dict().keys() - targets.keys()  # the second name of a weight that two layers share
    places: dict[str, Path] = {}
    try:
        for file in sorted(path.glob("model*.safetensors")):
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118
                    if name in aliases:
                        continue
                    shape = content.get_slice(name).get_shape()
                    if name not in targets or list(targets[name].shape) != shape:
                        own = list(targets[name].shape) if name in targets else "no such weight"
                        raise WeightsError(f"{file}: {name} has shape {shape}; the model that is served has {own}.")
                    places[name] = file
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} holds no readable weights: {error}") from error
    if missing := sorted(targets.keys() - places.keys()):
        raise WeightsError(f"{path} lacks {len(missing)} weights of the model that is served, such as {missing[0]}.")
    with torch.no_grad():
        for file in sorted(set(places.values())):
            with safe_open(file, framework="pt", device=str(next(iter(targets.values())).device)) as content:
                for name in (n for n, place in places.items() if place == file):
                    targets[name].copy_(content.get_tensor(name))
