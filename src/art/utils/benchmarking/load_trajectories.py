"""Reading the logged trajectories of a project."""

import asyncio
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from art.errors import MissingExtraError
from art.logs.directories import get_default_art_path, get_models_dir
from art.logs.parquet import read_trajectory_groups_parquet
from art.trajectories import Trajectory, TrajectoryGroup

__all__ = ["load_trajectories"]

_FIXED = {"model": "String", "split": "String", "step": "Int64", "reward": "Float64", "group_number": "Int64"}


async def load_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> Any:
    """One row per trajectory of every ``{split}/{step}.parquet`` of a project's models.

    Args:
        models: Names of the models to read; ``None`` reads all.
        debug: Say which files are read.
        art_path: Where models are logged; ``None``: ``.art`` in the repository.

    Returns:
        A ``polars.DataFrame`` with the columns ``model, split, step, reward, group_number`` (from 1, each group of each file
        its own), ``messages`` (JSON), ``logs``, floats ``metric_…`` and ``group_metric_…``, strings ``metadata_…`` and
        ``group_metadata_…``. Empty if nothing was found. Files that cannot be read are told and left out.

    >>> await art.Model(name="player", project="games").log([art.Trajectory(reward=0.5)], step=0)
    >>> (await load_trajectories("games", art_path=".art"))["reward"].to_list()
    [0.5]
    """
    polars = load_polars()
    directory = Path(get_models_dir(project_name, art_path or get_default_art_path()))
    rows = await asyncio.to_thread(lambda: list(_rows(directory, models, debug)))
    if not rows:
        return polars.DataFrame()
    schema: dict[str, Any] = {name: getattr(polars, kind) for name, kind in _FIXED.items()}
    schema |= {"messages": polars.String, "logs": polars.List(polars.String)}
    for row in rows:
        for name in row:
            if name not in schema:
                schema[name] = polars.Float64 if name.startswith(("metric_", "group_metric_")) else polars.String
    return polars.DataFrame(rows, schema=schema)


def load_polars() -> Any:
    """``polars``, loaded when first needed."""
    try:
        return import_module("polars")
    except ModuleNotFoundError as error:
        raise MissingExtraError("polars, which data frames need,", "polars") from error


def _rows(directory: Path, models: list[str] | None, debug: bool) -> Iterator[dict[str, Any]]:
    number = 0
    for file in sorted(directory.glob("*/trajectories/*/*.parquet")):
        model = file.parents[2].name
        if not file.stem.isdigit() or (models is not None and model not in models):
            continue
        if debug:
            print(f"reading {file}", file=sys.stderr)
        try:
            groups = read_trajectory_groups_parquet(file)
        except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
            print(f"warning: {file} cannot be read and was left out: {error}", file=sys.stderr)
            continue
        for group in groups:
            number += 1
            for trajectory in group.trajectories:
                where = {"model": model, "split": file.parent.name, "step": int(file.stem), "group_number": number}
                yield {**where, **_content(trajectory, group)}


def _content(trajectory: Trajectory, group: TrajectoryGroup) -> dict[str, Any]:
    return {
        "reward": trajectory.reward,
        "messages": json.dumps(trajectory.messages(), ensure_ascii=False),
        "logs": trajectory.logs,
        **{f"metric_{name}": float(value) for name, value in trajectory.metrics.items()},
        **{f"group_metric_{name}": float(value) for name, value in group.metrics.items()},
        **{f"metadata_{name}": _text(value) for name, value in trajectory.metadata.items()},
        **{f"group_metadata_{name}": _text(value) for name, value in group.metadata.items()},
    }


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
