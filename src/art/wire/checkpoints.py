"""Checkpoints of a model."""

from art.wire.base import Step, Wire


class Checkpoint(Wire):
    """One saved policy version.

    >>> Checkpoint(step=3, path="/art/p/models/m/checkpoints/0003", created_at=0.0, size_bytes=1).step
    3
    """

    step: int
    path: str
    """Directory on the backend's machine; holds a PEFT adapter, or a whole model, that loads anywhere."""
    created_at: float
    size_bytes: int


class CheckpointList(Wire):
    """A model's saved policy versions, in order.

    >>> CheckpointList(checkpoints=[]).model_dump()
    {'checkpoints': []}
    """

    checkpoints: list[Checkpoint]


class PruneCheckpoints(Wire):
    """Which checkpoints to keep; the others are deleted.

    >>> PruneCheckpoints(keep=[2, 5]).model_dump_json()
    '{"keep":[2,5]}'
    """

    keep: list[Step]
    """Steps to keep. The latest step is kept in any case."""
