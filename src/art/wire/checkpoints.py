"""Checkpoints of a model."""

from art.wire.base import Wire


class Checkpoint(Wire):
    """One saved policy version."""

    step: int
    path: str
    """Directory on the backend's machine; holds a PEFT adapter, or a whole model, that loads anywhere."""
    created_at: float
    size_bytes: int


class CheckpointList(Wire):
    """A model's saved policy versions, in order."""

    checkpoints: list[Checkpoint]


class PruneCheckpoints(Wire):
    """Which checkpoints to keep; the others are deleted."""

    keep: list[int]
    """Steps to keep. The latest step is kept in any case."""
