"""Moves tensors from a device to the CPU's memory and back, while every tensor, view and hook stays the object that it was.

What moves are storages: their content is copied, and they are made empty, which gives the memory back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class _Place:
    storage: torch.UntypedStorage
    copy: torch.UntypedStorage


class Parking:
    """Where the tensors of one model wait for the next step."""

    def __init__(self) -> None:
        self._frozen: list[_Place] = []
        """Copies of what never changes are made once and kept."""
        self._away: list[_Place] = []

    def leave(self, frozen: Iterable[Tensor], changing: Iterable[Tensor]) -> None:
        """Copy what changes, and what does not if it was not copied before; then give the device's memory back.

        Args:
            frozen: The same tensors each time. Some may share storages.
            changing: Those that have another content each time.

        Raises:
            ValueError: A tensor's memory is not its own, such as a view of a mapped file. Nothing was moved.
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
        """Put everything where it was."""
        for place in self._away:
            place.storage.resize_(place.copy.nbytes())
            place.storage.copy_(place.copy)
        self._away = []


def _copy(tensors: Iterable[Tensor]) -> list[_Place]:
    """A copy in the CPU's memory of each storage behind ``tensors``."""
    storages = {storage.data_ptr(): storage for t in tensors if (storage := t.untyped_storage()).nbytes()}
    return [_Place(storage, torch.UntypedStorage(storage.nbytes()).copy_(storage)) for storage in storages.values()]
