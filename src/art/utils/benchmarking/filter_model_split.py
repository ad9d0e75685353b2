"""Choosing what is compared."""

from collections.abc import Sequence
from typing import Any

from art.utils.benchmarking.load_trajectories import load_polars
from art.utils.benchmarking.types import BenchmarkModelKey, as_key


def filter_rename_model_split(df: Any, models: Sequence[str | BenchmarkModelKey]) -> Any:
    """The rows of the given models and splits, with the models' labels as ``model``, in the order given.

    >>> import polars
    >>> frame = polars.DataFrame({"model": ["player"], "split": ["val"], "reward": [0.5]})
    >>> filter_rename_model_split(frame, [BenchmarkModelKey("player", "The player")])["model"].to_list()
    ['The player']
    """
    polars = load_polars()
    parts = [
        df.filter((polars.col("model") == key.name) & (polars.col("split") == key.split)).with_columns(
            polars.lit(key.label).alias("model")
        )
        for key in map(as_key, models)
    ]
    return polars.concat(parts) if parts else df.clear()
