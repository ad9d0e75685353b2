"""Tensors in files, written without a second copy of them in memory."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``tensors`` as safetensors.

    Raises:
        OSError: They cannot be written, for instance because the disk is full.
    """
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(content, file, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"writing {file}: {error}") from error
