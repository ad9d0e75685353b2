"""From scored trajectories to training rows: checks, the overlong policy, advantages, and the weight of each token."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from art.wire import Overlong, TokenRow
from art_backend.errors import BadRequestError
from art_backend.training.algorithms.advantages import EQUAL_WITHIN, AdvantageFunction
from art_backend.training.algorithms.presets import PRESETS, Reduction
from art_backend.training.rows.packing import TrainingRow
from art_backend.training.rows.structures import StructureReplay
from art_backend.training.types import ScoredTrajectory, StepInput


@dataclass(slots=True)
class Member:
    """One trajectory with an advantage and at least one trained token."""

    rows: list[TrainingRow]

    @property
    def trained_tokens(self) -> int:
        return sum(int(row.trained.sum()) for row in self.rows)


@dataclass(slots=True)
class Update:
    """The weighed rows of one optimiser step."""

    rows: list[TrainingRow]
    learning_rate: float


@dataclass(slots=True)
class StepPlan:
    """All updates of a step, and what it leaves out."""

    updates: list[Update]
    metrics: dict[str, float]
    reason: str | None
    """Why there is nothing to learn, if so."""
    warnings: list[str]

    @property
    def rows(self) -> list[TrainingRow]:
        return [row for update in self.updates for row in update.rows]


@dataclass(slots=True)
class StepBatch:
    """The trajectories that a step trains on, and the reasons why others are left out."""

    members: list[Member]
    metrics: dict[str, float]
    reason: str | None
    """Why there is nothing to train, if there is nothing."""
    warnings: list[str] = field(default_factory=list[str])


def build_batch(
    step: StepInput,
    *,
    vocabulary: int,
    max_length: int,
    advantage: AdvantageFunction | None = None,
    structures: StructureReplay | None = None,
) -> StepBatch:
    """Check the input of a step and give every trajectory its advantage.

    Advantages come from the rewards of all trajectories that were sent, also of those that the overlong policy drops and of
    those without a token to train: their rewards are samples of the same policy. Groups without a signal are dropped and counted.

    Args:
        advantage: Stands in for the algorithm's.
        structures: Tells what structured output allowed. Without it, rows of structured output are refused.

    Raises:
        BadRequestError: A value is wrong; ``param`` is its path.
    """
    if not step.groups:
        raise BadRequestError("groups is empty: a step needs at least one group of trajectories.", param="groups")
    for g, group in enumerate(step.groups):
        if not group:
            raise BadRequestError(
                f"groups.{g} has no trajectories. Leave out groups in which every rollout failed.", param=f"groups.{g}"
            )
        for t, trajectory in enumerate(group):
            _check_trajectory(trajectory, f"groups.{g}.trajectories.{t}", vocabulary)
    options = step.options
    rewards = [np.array([t.reward for t in group], np.float64) for group in step.groups]
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # extreme rewards are met by the guard against non-finite gradients
        advantages = (advantage or PRESETS[options.algorithm].advantage)(rewards, options.scale_rewards)
        deviations = [float(r.std()) for r in rewards if r.size > 1]
    trainable = [bool(np.abs(a).max() > EQUAL_WITHIN) for a in advantages]
    overlong = OverlongRule(options.overlong, max_length)
    members: list[Member] = []
    sampled_by: dict[int, set[int]] = {}
    """For each group, the policy versions that sampled its trained tokens, as far as they are known."""
    for g, group in enumerate(step.groups):
        for t, trajectory in enumerate(group):
            rows = overlong.apply(trajectory.rows, f"groups.{g}.trajectories.{t}")
            member = Member(
                [training_row(row, float(advantages[g][t]), structures) for row in rows if any(row.sampled)]
            )
            if trainable[g] and member.trained_tokens:
                members.append(member)
                sampled_by.setdefault(g, set()).update(version for row in rows for version in _versions(row))
    everything = [trajectory for group in step.groups for trajectory in group]
    sampled_here = [trajectory for trajectory in everything if any(any(row.sampled) for row in trajectory.rows)]
    metrics = {
        "reward/mean": float(np.concatenate(rewards).mean()),
        "reward/std_dev": float(np.mean(deviations)) if deviations else 0.0,
        "data/step_num_groups_submitted": float(len(step.groups)),
        "data/step_num_groups_trainable": float(sum(trainable)) if members else 0.0,
        "data/step_num_groups_dropped": float(len(trainable) - (sum(trainable) if members else 0)),
        "data/step_num_trajectories": float(len(everything)),
        "data/step_num_trajectories_trained": float(len(members)),
        "data/step_num_trajectories_without_tokens": float(len(everything) - len(sampled_here)),
        "data/step_num_overlong": float(overlong.count),
        "data/rows_per_trajectory": sum(len(t.rows) for t in sampled_here) / max(len(sampled_here), 1),
    }
    if any(sampled_by.values()):
        stale = sum(any(version < step.step - 1 for version in versions) for versions in sampled_by.values())
        metrics["data/step_num_groups_stale"] = float(stale)
    reason = None if members else _why_nothing(trainable, bool(sampled_here), overlong)
    warnings = overlong.warnings() + _warn_of_unknown(members)
    if structures is not None and structures.lost:
        warnings.append(
            f"{structures.lost} tokens were left out: they were sampled under a structure (response_format, tool_choice or strict"
            " tools) that allows something else here than in the engine."
        )
    return StepBatch(members=members, metrics=metrics, reason=reason, warnings=warnings)


def weigh(members: Sequence[Member], reduction: Reduction, max_length: int) -> list[TrainingRow]:
    """Give the rows of one optimiser step their weights: 1 / denominator of the whole step, never less than 1."""
    rows = [row for member in members for row in member.rows]
    match reduction:
        case "token":
            tokens = max(sum(member.trained_tokens for member in members), 1)
            for row in rows:
                row.weight = 1 / tokens
        case "trajectory":
            for member in members:
                for row in member.rows:
                    row.weight = 1 / (max(member.trained_tokens, 1) * max(len(members), 1))
        case "sequence":
            for row in rows:
                row.weight = 1 / (max(int(row.trained.sum()), 1) * max(len(rows), 1))
        case "constant":
            for row in rows:
                row.weight = 1 / (max(len(members), 1) * max(max_length, 1))
    return rows


def _versions(row: TokenRow) -> list[int]:
    """The policy versions that sampled tokens of a row; tokens that were not captured have none."""
    versions = np.unique(np.asarray(row.policy_versions, np.int64)[np.asarray(row.sampled, np.bool_)])
    return versions[versions >= 0].tolist()


class OverlongRule:
    """Applies the overlong policy to trajectories and remembers what it did."""

    def __init__(self, policy: Overlong, max_length: int) -> None:
        self._policy = policy
        self._max_length = max_length
        self._longest = 0
        self.count = 0

    def apply(self, rows: list[TokenRow], where: str) -> list[TokenRow]:
        """Return the rows of a trajectory that may be trained."""
        longest = max((len(row.token_ids) for row in rows), default=0)
        if longest <= self._max_length:
            return rows
        self.count += 1
        self._longest = max(self._longest, longest)
        match self._policy:
            case Overlong.ERROR:
                raise BadRequestError(
                    f"{where} has a row of {longest} tokens; the model's maximum sequence length is {self._max_length}. "
                    'Raise it, or choose overlong="drop" or "truncate".',
                    param=where,
                )
            case Overlong.DROP:
                return []
            case Overlong.TRUNCATE:
                return [
                    TokenRow(
                        token_ids=row.token_ids[: self._max_length],
                        sampled=row.sampled[: self._max_length],
                        logprobs=row.logprobs and row.logprobs[: self._max_length],
                        policy_versions=row.policy_versions[: self._max_length],
                        temperature=row.temperature,
                        structures=[span for span in row.structures if span.start < self._max_length],
                    )
                    for row in rows
                ]

    def warnings(self, what: str = "trajectories") -> list[str]:
        """One sentence on what the rule left out or cut, if it did."""
        if not self.count:
            return []
        done = "left out" if self._policy is Overlong.DROP else "cut"
        return [
            f"{self.count} {what} were {done}: longer than the model's maximum sequence length of {self._max_length} "
            f"tokens (longest: {self._longest})."
        ]


def _warn_of_unknown(members: Sequence[Member]) -> list[str]:
    count = sum(any(np.isnan(row.logprobs).any() for row in member.rows) for member in members)
    if not count:
        return []
    return [
        f"{count} trajectories came without sampling log-probabilities; the policy's own, from before this step, are used"
        " instead. Samples of another policy are thus trained as if this one had sampled them."
    ]


def _why_nothing(trainable: list[bool], sampled_here: bool, overlong: OverlongRule) -> str:
    if not sampled_here:
        return (
            "No trajectory holds a token that this service sampled. Let the agent call the rollout's base_url with its api_key, or"
            " append the sampled choices; shorten prompts that fill the context."
        )
    if not any(trainable):
        return (
            f"None of the {len(trainable)} groups has a learning signal: within each, all rewards are equal"
            " (or there is only one trajectory). Make the task easier or harder, or the groups larger."
        )
    if overlong.count:
        return "Every trajectory of the groups with a learning signal was longer than the maximum sequence length."
    return "No trajectory of the groups with a learning signal holds a token that may be trained."


def _check_trajectory(trajectory: ScoredTrajectory, where: str, vocabulary: int) -> None:
    if not np.isfinite(trajectory.reward):
        raise BadRequestError(
            f"{where}.reward is {trajectory.reward}; it must be a finite number.", param=f"{where}.reward"
        )
    for r, row in enumerate(trajectory.rows):
        check_row(row, f"{where}.rows.{r}", vocabulary)


def check_row(row: TokenRow, where: str, vocabulary: int) -> None:
    """Raise BadRequestError for a row that cannot be trained; ``param`` is the path of the value."""
    length = len(row.token_ids)

    def refuse(field: str, problem: str) -> BadRequestError:
        return BadRequestError(f"{where}.{field} {problem}", param=f"{where}.{field}")

    if length == 0:
        raise refuse("token_ids", "is empty.")
    for name, values in (
        ("sampled", row.sampled),
        ("logprobs", [0.0] * length if row.logprobs is None else row.logprobs),
        ("policy_versions", row.policy_versions),
    ):
        if len(values) != length:
            raise refuse(name, f"has {len(values)} entries where token_ids has {length}; all lists have one length.")
    ids = np.asarray(row.token_ids, np.int64)
    outside = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if outside.size:
        at = int(outside[0])
        raise refuse(f"token_ids.{at}", f"is {ids[at]}; the model's vocabulary has ids 0 to {vocabulary - 1}.")
    for s, span in enumerate(row.structures):
        if not 0 < span.start < span.stop <= length or len(span.structured_outputs) != 1:
            raise refuse(f"structures.{s}", "needs 0 < start < stop ≤ the row's length, and one structure.")
    if row.sampled[0]:
        raise refuse("sampled.0", "is true, but the first token of a row has no context to be sampled from.")
    sampled = np.asarray(row.sampled, np.bool_)
    if (
        row.logprobs is not None
        and (wrong := np.flatnonzero(sampled & ~_are_logprobs(np.asarray(row.logprobs, np.float64)))).size
    ):
        at = int(wrong[0])
        raise refuse(
            f"logprobs.{at}", f"is {row.logprobs[at]}; a sampled token needs a finite log-probability, 0 at the most."
        )
    if not (np.isfinite(row.temperature) and row.temperature > 0):
        raise refuse(
            "temperature", f"is {row.temperature}; only tokens sampled at a temperature above 0 can be trained."
        )


def _are_logprobs(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values can be log-probabilities; an engine's rounding may lift one a little above 0."""
    return np.isfinite(values) & (values < 1e-3)


def training_row(row: TokenRow, advantage: float, structures: StructureReplay | None = None) -> TrainingRow:
    """The row as it is packed. It has no weight yet; unknown log-probabilities are NaN."""
    trained = np.asarray(row.sampled, np.bool_)
    if row.structures and structures is None:
        raise BadRequestError(
            "This trainer cannot train on structured output. Leave out response_format, tool_choice and strict tools.",
            param="structures",
        )
    return TrainingRow(
        token_ids=np.asarray(row.token_ids, np.int64),
        masks=structures.replay(row, trained) if structures else None,
        trained=trained,
        logprobs=np.asarray([np.nan] * len(row.token_ids) if row.logprobs is None else row.logprobs, np.float64),
        temperature=row.temperature,
        advantage=advantage,
        weight=0.0,
    )
