"""Checkpoints of a model."""

from art.wire.base import Wire


class Checkpoint(Wire):
    step: int
    path: str
    """Directory on the backend's machine; holds a PEFT adapter that loads anywhere."""
    created_at: float
    size_bytes: int


class CheckpointList(Wire):
    checkpoints: list[Checkpoint]


class PruneCheckpoints(Wire):
    keep: list[int]
    """Steps to keep. The latest step is kept in any case."""
