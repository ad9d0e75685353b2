"""Signs that a run collapses: groups that teach nothing, answers that grow alike, an entropy that falls.

Each is compared with the run's beginning. All three also accompany learning, so a warning says what to look at, once.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from art.trajectories import TrajectoryGroup, get_messages

USED, SUBMITTED = "data/step_num_groups_trainable", "data/step_num_groups_submitted"
DISTINCT, ENTROPY = "data/distinct_answers", "loss/entropy"

_WINDOW = 3
"""Steps that are averaged, at the beginning and now."""
_FEW_USED = 0.5

FLAT_REMEDY = "Use larger groups, scenarios of medium difficulty, or a finer-grained reward."
"""The remedy when many groups have equal rewards."""
_REMEDY = (
    "If the reward still rises, the model may have settled on one answer that often pays: read some. Then balance the "
    "scenarios or the reward, lower learning_rate, or set kl_penalty_coef=0.1."
)


class Signs:
    """Watches a run, step after step.

    Args:
        history: Rows of the steps that the model has taken before.
    """

    def __init__(self, history: Iterable[Mapping[str, Any]] = ()) -> None:
        self._series: dict[str, list[float]] = {"used": [], DISTINCT: [], ENTROPY: []}
        self._reported: set[str] = set()
        for row in history:
            if "train/reward" in row:  # others are of evaluations, or of learning from examples
                self._append(row)

    def measure(self, groups: Sequence[TrajectoryGroup], metrics: Mapping[str, float]) -> dict[str, float]:
        """Take in a step, and return what it adds to the step's metrics: the share of answers that are different."""
        share = distinct_share(groups)
        found = {} if share is None else {DISTINCT: share}
        self._append({**metrics, **found})
        return found

    def warnings(self) -> list[str]:
        """New signs, one sentence each; every sign is reported once."""
        found: list[str] = []
        used = self._series["used"][-_WINDOW:]
        if len(used) == _WINDOW and statistics.fmean(used) < _FEW_USED and self._first("used"):
            found.append(
                f"Only {100 * statistics.fmean(used):.0f} % of the groups of the last {_WINDOW} steps taught anything: in the "
                f"others all rewards were equal. {FLAT_REMEDY}"
            )
        for name, unit, said in (
            (
                DISTINCT,
                100,
                "Answers become alike: {1:.0f} % of a step's answers are distinct, down from {0:.0f} % at the start.",
            ),
            (ENTROPY, 1, "Entropy fell by more than half: {1:.3g} nats per token, down from {0:.3g} at the start."),
        ):
            series = self._series[name]
            if len(series) < 2 * _WINDOW:
                continue
            begun, now = statistics.fmean(series[:_WINDOW]), statistics.fmean(series[-_WINDOW:])
            if now < begun / 2 and self._first(name):
                found.append(f"{said.format(unit * begun, unit * now)} {_REMEDY}")
        return found

    def _first(self, name: str) -> bool:
        known = name in self._reported
        self._reported.add(name)
        return not known

    def _append(self, metrics: Mapping[str, Any]) -> None:
        if metrics.get(SUBMITTED) and USED in metrics:
            self._series["used"].append(metrics[USED] / metrics[SUBMITTED])
        for name in (DISTINCT, ENTROPY):
            if name in metrics:
                self._series[name].append(float(metrics[name]))


def distinct_share(groups: Sequence[TrajectoryGroup]) -> float | None:
    """Distinct answers of a step, as a share of its rollouts; ``None`` where conversations are not at hand.

    A rollout's answer is all that the assistant said and called in its main conversation.
    """
    answers = [
        answer
        for group in groups
        for trajectory in group.trajectories
        if (
            answer := tuple(
                (message.get("content"), str([call["function"] for call in message.get("tool_calls") or ()]))
                for message in map(dict[str, Any], get_messages(trajectory.messages_and_choices))
                if message["role"] == "assistant"
            )
        )
    ]
    return len(set(map(str, answers))) / len(answers) if len(answers) > 1 else None
