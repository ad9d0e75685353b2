"""The demo's training by ``art.train``: games go on while the trainer works."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import art
from art.demo.records import RunConfig, StepRecord
from art.demo.rollout import play
from art.demo.statistics import Score
from art.logs.files import read_history
from art.logs.parquet import read_trajectory_groups_parquet
from art.trajectories import Trajectory
from art.utils.output_dirs import get_model_dir, get_trajectories_split_dir


async def train_overlapped(
    model: "art.TrainableModel[Any, Any]", seeds: Iterable[int], config: RunConfig, max_staleness: int, steps: int
) -> None:
    """Take the steps that are still missing.

    Args:
        seeds: The opponents, in order, from the first step's on.

    Raises:
        KeyboardInterrupt: It was stopped with Ctrl-C; what was trained is kept.
    """
    run = await art.train(
        model,
        play,
        seeds,
        groups_per_step=config.groups,
        group_size=config.group_size,
        max_staleness=max_staleness,
        steps=steps,
        learning_rate=config.learning_rate,
        eval_scenarios=[],  # the demo evaluates by itself
    )
    if run.stopped:
        raise KeyboardInterrupt


def read_records(
    model: "art.TrainableModel[Any, Any]", score: Callable[[Iterable[Trajectory]], Score]
) -> list[StepRecord]:
    """What ``art.train`` logged of each step, as the demo keeps it. A game may have begun before the step that it counts in."""
    directory = get_model_dir(model, model.base_path)
    games = Path(get_trajectories_split_dir(directory, "train"))
    records: list[StepRecord] = []
    for row in read_history(Path(directory, "history.jsonl")):
        if "train/reward" not in row:
            continue
        step = int(row["step"])
        played = list(itertools.chain.from_iterable(read_trajectory_groups_parquet(games / f"{step:04d}.parquet")))
        trainer_s = float(row["time/step_trainer_s"])
        records.append(
            StepRecord(
                step=step,
                score=score(played),
                gather_s=max(0.0, float(row["time/step_wall_s"]) - trainer_s),
                train_s=trainer_s,
                sampled_tokens=int(sum(trajectory.metrics["sampled_tokens"] for trajectory in played)),
                metrics={name: float(value) for name, value in row.items() if isinstance(value, (int, float))},
            )
        )
    return records
