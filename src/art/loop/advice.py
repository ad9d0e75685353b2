"""What a preflight found, with advice."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from art.loop.signs import FLAT_REMEDY
from art.rollouts.transcript import write_transcript
from art.terminal import terminal_width, wrap
from art.trajectories import Trajectory

GOOD_SUCCESS = 0.3
"""Rule of thumb: the base model's success rate before reinforcement learning should be about this."""
TOO_HARD, HARD, TOO_EASY = 0.02, 0.15, 0.9
MANY_FLAT, MANY_FAILED, MANY_TRUNCATED = 0.5, 0.1, 0.1
LONG_TAIL = 3.0
"""Ratio of the slowest rollout to the median from which a synchronous step mostly waits."""


@dataclass(frozen=True)
class Preflight:
    """Measurements of a few groups. Shares are between 0 and 1; unmeasured values are ``None``.

    >>> found = await art.preflight(model, rollout, ["a", "b"], groups=2, group_size=2)
    >>> found.can_learn in (True, False)
    True
    """

    groups: int
    group_size: int
    groups_per_step: int
    steps: int | None
    rollouts: int
    """Rollouts that returned a trajectory."""
    failures: dict[str, int]
    """Number of failures, by the first line of the error."""
    success_reward: float
    success_rate: float
    reward_mean: float
    reward_min: float
    reward_max: float
    reward_spread: float
    """Standard deviation within a group, mean over groups."""
    flat_share: float
    """Share of groups in which all rewards are equal: they teach nothing."""
    seconds_median: float
    seconds_max: float
    """Of one rollout, at this preflight's concurrency."""
    step_rollout_s: float
    """Estimated seconds of the rollouts of a synchronous step."""
    step_train_s: float
    """Estimated seconds of training in a step."""
    train_measured: bool
    """Whether that comes from earlier steps of the model; otherwise it is assumed to equal the rollouts' time."""
    step_cost_usd: float | None
    sampled_tokens: float | None
    """Per rollout."""
    context_tokens: float | None
    """Longest conversation of a rollout, mean."""
    truncated_share: float | None
    """Rollouts that ran out of context."""
    cut_share: float | None
    """Answers that ended at ``max_tokens``."""
    untrainable: dict[str, int]
    """Answers that cannot be trained, by reason."""
    uncaptured: int = 0
    """Trajectories without a captured model call."""
    examples: list[Trajectory] = field(default_factory=list[Trajectory])
    """The rollouts with the lowest and the highest reward, to read."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def can_learn(self) -> bool:
        """Whether training on these scenarios is likely to help."""
        return (
            self.rollouts > 0
            and not self.untrainable
            and self.uncaptured < self.rollouts
            and self.flat_share < 1
            and self.success_rate >= TOO_HARD
        )

    @property
    def step_s(self) -> float:
        return self.step_rollout_s + self.step_train_s

    def advice(self) -> list[str]:
        """One or two sentences for each thing worth changing, most important first."""
        return [*self._on_the_agent(), *self._on_the_task(), *self._on_limits()]

    def _on_the_agent(self) -> Iterator[str]:
        if self.failed > MANY_FAILED * (self.failed + self.rollouts):
            for reason, count in self.failures.items():
                yield f"{count} rollouts failed with {reason}. Fix this first: failed rollouts contribute nothing."
        if self.uncaptured:
            yield (
                f"{self.uncaptured} of {self.rollouts} trajectories have no captured model call. Let the agent use "
                "model.openai_client() and append its choices, or run it inside `async with model.rollout()`."
            )
        for reason, count in self.untrainable.items():
            yield f"{count} answers cannot be trained: {reason}."

    def _on_the_task(self) -> Iterator[str]:
        if not self.rollouts:
            return
        share = _per_cent(self.success_rate)
        if self.success_rate < TOO_HARD:
            yield (
                f"The model succeeds in {share} of its rollouts (reward of at least {self.success_reward:g}), so there is hardly "
                "anything to reinforce. Start with easier scenarios, reward partial progress, show an example in the prompt, "
                "or start from a model that was fine-tuned on good runs."
            )
        elif self.success_rate < HARD:
            yield (
                f"The model succeeds in {share} of its rollouts; about {_per_cent(GOOD_SUCCESS)} is a good start. It can learn, "
                "but slowly: mix in easier scenarios or take larger groups."
            )
        elif self.success_rate > TOO_EASY:
            yield f"The model succeeds in {share} of its rollouts already. Look for harder scenarios."
        if self.flat_share > MANY_FLAT:
            yield f"{_per_cent(self.flat_share)} of the groups have equal rewards and teach nothing. {FLAT_REMEDY}"

    def _on_limits(self) -> Iterator[str]:
        if self.truncated_share is not None and self.truncated_share > MANY_TRUNCATED:
            yield (
                f"{_per_cent(self.truncated_share)} of the rollouts ran out of context. Raise the model's max_seq_length, or let "
                "the agent write less."
            )
        if self.cut_share is not None and self.cut_share > MANY_TRUNCATED:
            yield f"{_per_cent(self.cut_share)} of the answers ended at max_tokens. Raise max_tokens, or ask for shorter answers."
        if self.seconds_max > LONG_TAIL * self.seconds_median > 0:
            yield (
                f"The slowest rollout took {self.seconds_max:.1f} s, the median {self.seconds_median:.1f} s. Train with "
                "max_staleness=1 or 2, so that steps do not wait for the slowest, and with a rollout_timeout_s."
            )

    def __str__(self) -> str:
        width = terminal_width()
        lines: list[str] = []
        for example in self.examples:
            lines += [f"── a rollout of reward {example.reward:g}", "", write_transcript(example, width), ""]
        for name, value in self._rows():
            lines += _hang(f"{name:<22} ", value, width)
        lines += ["", "RL can help here." if self.can_learn else "RL will not help here yet."]
        for sentence in self.advice():
            lines += _hang("- ", sentence, width)
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "rollouts", f"{self.rollouts + self.failed} in {self.groups} groups, {self.failed} failed"
        if not self.rollouts:
            return
        yield "success rate", f"{_per_cent(self.success_rate)} (reward of at least {self.success_reward:g})"
        yield "reward", f"{self.reward_mean:+.3f}, from {self.reward_min:+.3f} to {self.reward_max:+.3f}"
        yield "spread within groups", f"{self.reward_spread:.3f}"
        yield "groups without spread", _per_cent(self.flat_share)
        yield "tokens per rollout", f"{_number(self.sampled_tokens)} sampled, {_number(self.context_tokens)} of context"
        yield "out of context", _per_cent(self.truncated_share)
        yield "cut at max_tokens", _per_cent(self.cut_share)
        yield "seconds per rollout", f"{self.seconds_median:.1f} median, {self.seconds_max:.1f} longest"
        yield "a step", self._step_row()
        if self.steps is not None:
            cost = "" if self.step_cost_usd is None else f", ${self.step_cost_usd * self.steps:.2f}"
            yield "the run", f"at most about {_duration(self.step_s * self.steps)} for {self.steps} steps{cost}"

    def _step_row(self) -> str:
        basis = "as measured before" if self.train_measured else "taken to be as long as the rollouts"
        cost = "" if self.step_cost_usd is None else f", ${self.step_cost_usd:.3f}"
        return (
            f"at most about {_duration(self.step_s)} for {self.groups_per_step} groups of {self.group_size}: rollouts "
            f"{_duration(self.step_rollout_s)}, training {_duration(self.step_train_s)} ({basis}){cost}"
        )


def _hang(mark: str, text: str, width: int) -> list[str]:
    """The text behind a mark, its further lines below its first."""
    first, *others = wrap(text, max(width - len(mark), 20))
    return [mark + first, *(" " * len(mark) + line for line in others)]


def _per_cent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
