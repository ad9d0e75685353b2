"""The same held-out scenarios for the base model, the trained one and scripted players."""

import itertools
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from art.errors import ARTError
from art.evaluation import evaluate
from art.experiment.results import Player, Results, StepReward
from art.experiment.run import Run
from art.gather import progress_bar
from art.logs.directories import get_model_dir
from art.logs.files import read_history
from art.logs.statistics import Interval, interval, share_interval
from art.model import TrainableModel
from art.trajectories import Trajectory

__all__ = ["Score", "compare"]

_GAP = "offpolicy/logprob_gap_row_max"


class PinnedRollout(Protocol):
    """A rollout function that takes the policy version to use."""

    def __call__(self, model: Any, scenario: Any, /, *, step: int | None = None) -> Awaitable[Trajectory]: ...


@dataclass(frozen=True)
class Score:
    """The reward and metrics of a scripted player's episode.

    >>> Score(1.0, {"turns": 3}).metrics["turns"]
    3
    """

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


async def compare(
    run: Run,
    rollout: PinnedRollout,
    scenarios: Sequence[Any],
    scripted: Mapping[str, Callable[[Any], Score]],
    *,
    measured: Mapping[str, Interval] | None = None,
    model: TrainableModel[Any, Any] | None = None,
    max_concurrent: int | None = 64,
) -> Results:
    """Play each held-out scenario once with every player: the base model, the warmed-up one if there is one, the trained one,
    and the scripted ones. The models' episodes are logged as split ``val``.

    Args:
        scripted: Players without a model, by name.
        measured: Other measurements to keep in the results, by name.
        model: The run's model, if it is registered already; ``None`` opens the run's backend.

    Raises:
        ARTError: Nothing was trained yet.
        BackendError, openai.APIError: The service failed.
    """
    run.check_begun()
    players: list[Player] = []
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        if model is None:
            model = run.make_model()
            await model.register(await stack.enter_async_context(run.open_backend()))
        last = await model.get_step()
        if last <= run.warm_up_step:
            raise ARTError(f"{run.name} has taken no step of reinforcement learning yet: train first.", 404)
        versions = {"base model": 0} | ({"after warm-up": 1} if run.warm_up_step else {}) | {"trained": last}
        for name, step in versions.items():
            with progress_bar(name, len(scenarios)) as bar:
                players.append(await _try_version(name, step, model, rollout, scenarios, max_concurrent, bar))
    players += [summarise(name, None, [play(one) for one in scenarios]) for name, play in scripted.items()]
    rows = [
        row
        for row in read_history(Path(get_model_dir(model, model.base_path), "history.jsonl"))
        if "train/reward" in row
    ]
    metrics = {f"train/{name}": name for player in players for name in player.metrics}
    gaps = [float(row[_GAP]) for row in rows if _GAP in row]
    return Results(
        example=run.example,
        variant=run.variant,
        form=run.form,
        seed=run.seed,
        base_model=run.settings.base_model,
        step=last,
        warm_up=run.settings.warm_up,
        players=players,
        measured=dict(measured or {}),
        steps=[
            StepReward(
                step=int(row["step"]),
                reward=float(row["train/reward"]),
                metrics={name: float(row[key]) for key, name in metrics.items() if key in row},
            )
            for row in {row["step"]: row for row in rows}.values()
        ],
        training_s=run.training_seconds(),
        evaluation_s=time.monotonic() - started,
        max_logprob_gap=max(gaps, default=None),
    )


async def _try_version(
    name: str,
    step: int,
    model: TrainableModel[Any, Any],
    rollout: PinnedRollout,
    scenarios: Sequence[Any],
    max_concurrent: int | None,
    bar: Any,
) -> Player:
    played: list[Trajectory] = []

    def note(trajectories: Sequence[Trajectory]) -> None:
        played.extend(trajectories)
        bar.update(1)

    found = await evaluate(
        name, model, partial(rollout, step=step), scenarios, runs=1, max_concurrent=max_concurrent, on_scenario=note
    )
    if found.first_failure is not None:
        print(f"{name}: {found.failed} of {len(scenarios)} episodes failed, the first with {found.first_failure}")
    await model.log(played, split="val", step=step)
    scores = [Score(one.reward, {key: float(value) for key, value in one.metrics.items()}) for one in played]
    return summarise(name, step, scores, found.failed)


def summarise(name: str, step: int | None, scores: Sequence[Score], failed: int = 0) -> Player:
    """Means and intervals of a player's episodes.

    Raises:
        ARTError: Fewer than two episodes ended.
    """
    if len(scores) < 2:
        raise ARTError(f"{name}: only {len(scores)} episodes ended, too few to say anything.", 500)
    names = dict.fromkeys(itertools.chain.from_iterable(score.metrics for score in scores))
    return Player(
        name=name,
        step=step,
        episodes=len(scores),
        failed=failed,
        reward=estimate([score.reward for score in scores]),
        metrics={key: estimate([score.metrics[key] for score in scores if key in score.metrics]) for key in names},
    )


def estimate(values: Sequence[float]) -> Interval:
    """Mean with its 95 % interval: Wilson's for shares, sound near 0 and 1 too, Student's for other values."""
    if values and set(values) <= {0.0, 1.0}:
        return share_interval(round(math.fsum(values)), len(values))
    found = interval(values)
    if found is None:
        raise ValueError("There are no values to average.")
    return found
