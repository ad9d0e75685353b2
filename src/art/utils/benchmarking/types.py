"""Which model, under which label, on which split."""

from dataclasses import dataclass

__all__ = ["BenchmarkModelKey"]


@dataclass(frozen=True)
class BenchmarkModelKey:
    """One line of a chart.

    >>> BenchmarkModelKey("player").split
    'val'
    """

    name: str
    display_name: str | None = None
    """What charts call it; ``None``: its name."""
    split: str | None = None
    """``None`` becomes ``"val"``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", self.split or "val")

    @property
    def label(self) -> str:
        return self.display_name or self.name


def as_key(model: "str | BenchmarkModelKey") -> BenchmarkModelKey:
    """A key as it is; a name as the key of its ``val`` split."""
    return BenchmarkModelKey(model) if isinstance(model, str) else model
