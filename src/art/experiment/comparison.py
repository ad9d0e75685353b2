"""The same held-out scenarios for the base model, the trained one and scripted players."""

import itertools
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from art.demo.statistics import estimate_share
from art.errors import ARTError
from art.evaluation import evaluate
from art.experiment.results import Player, Results, StepReward
from art.experiment.run import Run
from art.gather import progress_bar
from art.logs.files import read_history
from art.logs.statistics import Interval, interval
from art.model import TrainableModel
from art.trajectories import Trajectory
from art.utils.output_dirs import get_output_dir_from_model_properties

__all__ = ["Score", "compare"]


class PinnedRollout(Protocol):
    """A rollout function that can be told which policy version acts."""

    def __call__(self, model: Any, scenario: Any, /, *, step: int | None = None) -> Awaitable[Trajectory]: ...


@dataclass(frozen=True)
class Score:
    """What a scripted player's episode was worth.

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
    max_concurrent: int | None = 64,
) -> Results:
    """Play each held-out scenario once with every player: the base model, the warmed-up one if there is one, the trained one,
    and the scripted ones.

    Args:
        scripted: Players without a model, by name.
        measured: What else was measured, by name, to stand in the results.

    Raises:
        ARTError: Nothing was trained yet.
        BackendError, openai.APIError: The service failed.

    >>> async def play(model, scenario, *, step=None):
    ...     async with model.rollout(step) as r:
    ...         messages = [{"role": "user", "content": scenario}]
    ...         await r.openai_client().chat.completions.create(model=model.name, messages=messages, max_tokens=2)
    ...         return r.trajectory(reward=float(len(scenario)))
    >>> run = Run(
    ...     example="guess",
    ...     form="small",
    ...     seed=1,
    ...     settings=art.experiment.Settings(base_model=base_model, steps=1),
    ...     directory=Path("run"),
    ...     backend_url=service_url,
    ...     api_key=service_key,
    ... )
    >>> run.open()
    >>> learner = run.make_model()
    >>> await learner.register(backend)
    >>> _ = await backend.train(learner, [await art.TrajectoryGroup(play(learner, word) for word in ("Hi.", "Hello."))])
    >>> results = await compare(run, play, ["Hi.", "Hello."], {"silence": lambda scenario: Score(0.0)})
    >>> [(player.name, player.reward.value) for player in results.players]
    [('base model', 4.5), ('trained', 4.5), ('silence', 0.0)]
    """
    run.check_begun()
    players: list[Player] = []
    started = time.monotonic()
    async with run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        last = await model.get_step()
        if last <= run.warm_up_step:
            raise ARTError(f"{run.name} has taken no step of reinforcement learning yet: train first.", 404)
        versions = {"base model": 0} | ({"after warm-up": 1} if run.warm_up_step else {}) | {"trained": last}
        for name, step in versions.items():
            with progress_bar(name, len(scenarios)) as bar:
                players.append(await _try_version(name, step, model, rollout, scenarios, max_concurrent, bar))
    players += [_summarise(name, None, [play(one) for one in scenarios], 0) for name, play in scripted.items()]
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
        steps=_read_rewards(model),
        training_s=run.training_seconds(),
        evaluation_s=time.monotonic() - started,
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
    scores: list[Score] = []

    def note(trajectories: Sequence[Trajectory]) -> None:
        scores.extend(
            Score(one.reward, {key: float(value) for key, value in one.metrics.items()}) for one in trajectories
        )
        bar.update(1)

    found = await evaluate(
        name, model, partial(rollout, step=step), scenarios, runs=1, max_concurrent=max_concurrent, on_scenario=note
    )
    if found.first_failure is not None:
        print(f"{name}: {found.failed} of {len(scenarios)} episodes failed, the first with {found.first_failure}")
    return _summarise(name, step, scores, found.failed)


def _summarise(name: str, step: int | None, scores: Sequence[Score], failed: int) -> Player:
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
        share = estimate_share(round(math.fsum(values)), len(values))
        return Interval(share.value, share.low, share.high)
    found = interval(values)
    if found is None:
        raise ValueError("There is no mean of no values.")
    return found


def _read_rewards(model: TrainableModel[Any, Any]) -> list[StepReward]:
    """Mean reward of each training step."""
    directory = get_output_dir_from_model_properties(model.project, model.name, model.base_path)
    rows = read_history(Path(directory, "history.jsonl"))
    found = {int(row["step"]): float(row["train/reward"]) for row in rows if "train/reward" in row}
    return [StepReward(step=step, reward=reward) for step, reward in sorted(found.items())]
