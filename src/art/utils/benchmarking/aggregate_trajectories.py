"""Logged trajectories as means per model, split and step."""

from typing import Any

from art.utils.benchmarking.load_trajectories import load_polars, load_trajectories

_KEYS = ["model", "split", "step"]


async def load_aggregated_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> Any:
    """Means of ``reward`` and all ``metric_…`` columns per model, split and step, with ``n_trajectories``; a ``polars.DataFrame``.

    >>> await art.Model(name="player", project="games").log([art.Trajectory(reward=0.5)], step=0)
    >>> (await load_aggregated_trajectories("games", art_path=".art"))["n_trajectories"].to_list()
    [1]
    """
    polars = load_polars()
    frame = await load_trajectories(project_name, models, debug, art_path)
    if frame.is_empty():
        return frame
    means = [name for name in frame.columns if name == "reward" or name.startswith(("metric_", "group_metric_"))]
    found = frame.group_by(_KEYS).agg(
        *(polars.col(name).mean() for name in means), polars.len().alias("n_trajectories")
    )
    return found.sort(_KEYS)


async def load_latest_metrics(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> Any:
    """Of ``load_aggregated_trajectories``, the row of the latest step of each model and split.

    >>> await art.Model(name="player", project="games").log([art.Trajectory(reward=0.5)], step=3)
    >>> (await load_latest_metrics("games", art_path=".art"))["step"].to_list()
    [3]
    """
    frame = await load_aggregated_trajectories(project_name, models, debug, art_path)
    if frame.is_empty():
        return frame
    return frame.group_by(["model", "split"], maintain_order=True).last().sort(["model", "split"])
