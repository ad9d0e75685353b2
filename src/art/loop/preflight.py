"""Run a few groups before training, to see whether reinforcement learning can help."""

import statistics
import time
from collections import Counter
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from art.backend import AnyTrainableModel
from art.backend.remote import RemoteBackend
from art.gather import progress_bar
from art.logs.directories import get_model_dir
from art.logs.files import read_history
from art.logs.rows import is_trainable
from art.loop.advice import Preflight
from art.loop.groups import ScenarioCursor
from art.loop.rollouts import GroupRunner, HoldClock, RolloutFn, roll_out_each
from art.rollouts.references import find_references
from art.rollouts.rollout import fill_in, read_conversations
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup
from art.wire import RolloutTree, TreeNode

ScenarioT = TypeVar("ScenarioT")


async def preflight(
    model: AnyTrainableModel,
    rollout: RolloutFn[ScenarioT],
    scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT],
    *,
    groups: int = 4,
    group_size: int = 8,
    groups_per_step: int = 8,
    steps: int | None = None,
    success_reward: float = 0.5,
    rollout_timeout_s: float | None = None,
    max_concurrent_rollouts: int | None = None,
) -> Preflight:
    """Roll out a few groups without training, and report whether training can help. ``print`` the result.

    Args:
        model: Registered with a backend.
        rollout: As for ``art.train``.
        scenarios: The first ``groups`` of them are tried.
        groups_per_step: Groups per step of the planned run; with ``steps``, used to estimate time and cost.
        success_reward: Minimum reward for a rollout to count as a success.

    Raises:
        ValueError: There is no scenario, or a size is not positive.
        BackendError, openai.APIError: The service failed.

    >>> found = await art.preflight(model, rollout, ["a", "b"], groups=2, group_size=2)
    >>> found.rollouts, found.failed, len(found.examples)
    (4, 0, 2)
    """
    if min(groups, group_size, groups_per_step) < 1:
        raise ValueError("groups, group_size and groups_per_step must be at least 1.")
    cursor = ScenarioCursor(scenarios)
    chosen = [taken[1] for _ in range(groups) if (taken := await cursor.take()) is not None]
    if not chosen:
        raise ValueError("scenarios is empty. Give at least one scenario.")
    seconds: list[float] = []

    async def timed(model: AnyTrainableModel, scenario: ScenarioT) -> Any:
        begun = time.monotonic()
        result = await rollout(model, scenario)
        seconds.append(time.monotonic() - begun)
        bar.update(1)
        return result

    runner = GroupRunner(
        model,
        timed,
        size=group_size,
        timeout_s=rollout_timeout_s,
        max_concurrent=max_concurrent_rollouts,
        clock=HoldClock(),
    )
    started = time.monotonic()
    builder = model.metrics_builder("preflight")
    with builder.activate_context(), progress_bar("rollouts", len(chosen) * group_size) as bar:
        tried = await roll_out_each(runner, chosen)
    wall_s = time.monotonic() - started
    await runner.leave()
    spent_usd = (await builder.flush()).get("costs/all", 0.0)
    return await _measure(
        model,
        tried,
        seconds,
        wall_s,
        spent_usd,
        group_size=group_size,
        groups_per_step=groups_per_step,
        steps=steps,
        success_reward=success_reward,
    )


async def _measure(
    model: AnyTrainableModel,
    tried: list[TrajectoryGroup],
    seconds: list[float],
    wall_s: float,
    spent_usd: float,
    *,
    group_size: int,
    groups_per_step: int,
    steps: int | None,
    success_reward: float,
) -> Preflight:
    trajectories = [trajectory for group in tried for trajectory in group.trajectories]
    rewards = [trajectory.reward for trajectory in trajectories]
    spreads = [statistics.pstdev(t.reward for t in group.trajectories) for group in tried if group.trajectories]
    failures = Counter(_label(error) for group in tried for error in group.exceptions)
    runs = await _look_up(model, trajectories)
    captured = [run for run in runs or [] if run.nodes or run.truncated]
    answers = [node for run in captured for node in run.nodes]

    count = groups_per_step * group_size
    # What is bound by the slowest rollout does not grow with the number of rollouts; what is bound by the engine does.
    step_rollout_s = max(*seconds, wall_s * count / len(seconds)) if seconds else wall_s
    train_s = _trainer_seconds(model)
    step_train_s = step_rollout_s if train_s is None else train_s * count
    return Preflight(
        groups=len(tried),
        group_size=group_size,
        groups_per_step=groups_per_step,
        steps=steps,
        rollouts=len(trajectories),
        failures=dict(failures.most_common()),
        success_reward=success_reward,
        success_rate=_mean([float(reward >= success_reward) for reward in rewards]) or 0.0,
        reward_mean=_mean(rewards) or 0.0,
        reward_min=min(rewards, default=0.0),
        reward_max=max(rewards, default=0.0),
        reward_spread=_mean(spreads) or 0.0,
        flat_share=_mean([float(not is_trainable(group)) for group in tried]) or 0.0,
        seconds_median=statistics.median(seconds) if seconds else wall_s,
        seconds_max=max(seconds, default=wall_s),
        step_rollout_s=step_rollout_s,
        step_train_s=step_train_s,
        train_measured=train_s is not None,
        step_cost_usd=_cost(model, step_rollout_s + step_train_s, spent_usd * count / max(len(trajectories), 1)),
        sampled_tokens=_mean([sum(len(node.token_ids) for node in run.nodes) for run in captured]),
        context_tokens=_mean(
            [max((node.keep + len(node.token_ids) for node in run.nodes), default=0) for run in captured]
        ),
        truncated_share=_mean([float(run.truncated) for run in captured]),
        cut_share=_mean([float(node.finish_reason == "length") for node in answers]),
        untrainable=dict(Counter(node.untrainable for node in answers if node.untrainable is not None).most_common()),
        examples=_examples(trajectories, runs),
        uncaptured=0 if runs is None else len(runs) - len(captured),
    )


@dataclass
class _Run:
    """The captured part of one trajectory."""

    tree: RolloutTree | None
    """Of the keyed rollout that the trajectory names; ``None`` if it names none."""
    nodes: list[TreeNode]
    """Those that were sampled."""
    truncated: bool


async def _look_up(model: AnyTrainableModel, trajectories: list[Trajectory]) -> list[_Run] | None:
    """Ask the backend what it captured of each trajectory; ``None`` if it cannot say."""
    backend = model.backend()
    if not isinstance(backend, RemoteBackend):
        return None
    trees: dict[str, RolloutTree] = {}

    async def tree_of(rollout: str) -> RolloutTree:
        if rollout not in trees:
            trees[rollout] = await backend.get_rollout(rollout)
        return trees[rollout]

    runs: list[_Run] = []
    for trajectory in trajectories:
        if trajectory.rollout_id is not None:
            tree = await tree_of(trajectory.rollout_id)
            runs.append(_Run(tree, [node for node in tree.nodes if node.sampled], tree.truncated))
            continue
        found = find_references(trajectory)
        turns = {reference.turn for reference in found}
        rollouts = dict.fromkeys(reference.rollout for reference in found if reference.rollout is not None)
        nodes = [node for rollout in rollouts for node in (await tree_of(rollout)).nodes if node.id in turns]
        runs.append(_Run(None, nodes, truncated=None in turns))
    return runs


def _examples(trajectories: list[Trajectory], runs: list[_Run] | None) -> list[Trajectory]:
    """The rollouts of the lowest and of the highest reward, with the conversations that only the backend recorded."""
    if not trajectories:
        return []
    order = sorted(range(len(trajectories)), key=lambda i: trajectories[i].reward)
    found: list[Trajectory] = []
    for i in dict.fromkeys((order[0], order[-1])):
        example = trajectories[i].model_copy()
        tree = runs[i].tree if runs is not None else None
        found.append(
            fill_in(example, read_conversations(tree))
            if tree is not None and not example.messages_and_choices
            else example
        )
    return found


def _label(error: PydanticException) -> str:
    kind = error.type.removeprefix("<class '").removesuffix("'>").rsplit(".", 1)[-1]
    first_line = error.message.partition("\n")[0]
    return f"{kind}: {first_line}" if first_line else kind


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _trainer_seconds(model: AnyTrainableModel) -> float | None:
    """Seconds of training per rollout in the model's last steps; ``None`` before its first."""
    rows = read_history(Path(get_model_dir(model, model.base_path), "history.jsonl"))
    found = [
        row["time/step_trainer_s"] / row["data/step_num_trajectories"]
        for row in rows[-20:]
        if row.get("data/step_num_trajectories") and "time/step_trainer_s" in row
    ]
    return statistics.median(found) if found else None


def _cost(model: AnyTrainableModel, seconds: float, calls_usd: float) -> float | None:
    """Dollars for so long on the backend's devices, and for what the rollouts themselves booked."""
    backend = model.backend()
    hourly = backend.automatic_gpu_cost_per_hour_usd(model) if isinstance(backend, RemoteBackend) else None
    if hourly is None:
        return calls_usd or None
    return seconds * hourly / 3600 + calls_usd
