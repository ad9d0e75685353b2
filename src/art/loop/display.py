"""What ``art.train`` shows: a line per step, and on a terminal what happens now."""

import contextlib
import statistics
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from art.backend import AnyTrainableModel
from art.loop.groups import GroupsInFlight
from art.loop.rollouts import GroupRunner
from art.loop.training import Evaluated, StepReport
from art.progress import MessageStream
from art.trajectories import Trajectory

_RECENT = 5
"""Steps that the estimate of the time left looks back at."""
_SHARES = tuple(f"throughput/engine_{part}_share" for part in ("busy", "idle", "paused"))


class LoopDisplay:
    """Writes to standard error. An ``Observer`` of the training loop.

    Args:
        per_step: Groups that a step takes.
        steps: The last step; ``None``: not known.
        shown: Whether anything is written at all.
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        groups: GroupsInFlight[Any],
        runner: GroupRunner[Any],
        *,
        per_step: int,
        steps: int | None,
        shown: bool,
    ) -> None:
        self._model, self._groups, self._runner = model, groups, runner
        self._per_step, self._steps = per_step, steps
        self._console = Console(file=sys.stderr, highlight=False, quiet=not shown)
        self._open = contextlib.ExitStack()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._doing = "starting"

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            live = Live(
                get_renderable=self._now, console=self._console, refresh_per_second=4, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._open.enter_context(live)
            # Other displays draw on a terminal's standard error; beside this one, only their messages are wanted.
            self._open.enter_context(contextlib.redirect_stderr(MessageStream(self._console)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin(self, step: int) -> None:
        """Say where the run stands."""
        of = "" if self._steps is None else f" of {self._steps}"
        self._say(f"{self._model.name}: {'resuming after' if step else 'training from'} step {step}{of}")
        self._console.print(
            Text(
                f"{'step':>5}  {'reward':>14}  {'tokens/s':>8}  {'busy':>5} {'idle':>5} {'paused':>6}  {'in flight':>9}  "
                f"{'stale':>5}  {'time':>6}  {'left':>6}  cost",
                "bold",
            ),
            soft_wrap=True,
        )
        self._doing = "rolling out"

    def training(self, step: int, groups: int) -> None:
        self._doing = f"training step {step} on {groups} groups"

    def trained(self, report: StepReport) -> None:
        self._doing = "rolling out"
        self._recent.append(report.wall_s)
        self._say(self._row(report))

    def evaluated(self, step: int, splits: Mapping[str, Evaluated]) -> None:
        for split, items in splits.items():
            rewards = [
                trajectory.reward
                for item in items
                for trajectory in ([item] if isinstance(item, Trajectory) else item.trajectories)
            ]
            if rewards:
                self._say(f"{step:>5}  {_spread(rewards)}  {split}, {len(rewards)} trajectories")

    def end(self, step: int, *, stopped: bool) -> None:
        if stopped:
            self._say(f"Stopped after step {step}. The same command goes on from there.")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _now(self) -> Text:
        of = f"/{self._steps}" if self._steps is not None else ""
        return Text(
            f"{self._groups.version}{of} steps · {self._doing} · {self._groups.ready.qsize()} groups ready of "
            f"{self._per_step} · {self._groups.running} running · {self._runner.running} rollouts",
            style="dim",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _row(self, report: StepReport) -> str:
        rewards = [trajectory.reward for group in report.batch.groups for trajectory in group.trajectories]
        metrics = report.metrics
        tokens = metrics.get("data/step_trainer_tokens")
        rate = f"{tokens / report.wall_s:.0f}" if tokens is not None and report.wall_s > 0 else "–"
        busy, idle, paused = (f"{100 * metrics[name]:.0f} %" if name in metrics else "–" for name in _SHARES)
        in_flight = metrics["pipeline/groups_running"] + metrics["pipeline/groups_ready"]
        return (
            f"{report.step:>5}  {_spread(rewards)}  {rate:>8}  {busy:>5} {idle:>5} {paused:>6}  {in_flight:>9.0f}  "
            f"{metrics['pipeline/stale_groups']:>5.0f}  {_clock(report.wall_s):>6}  {self._left(report.step):>6}  "
            f"{self._cost()}"
        )

    def _left(self, step: int) -> str:
        return "–" if self._steps is None else _clock(statistics.fmean(self._recent) * (self._steps - step))

    def _cost(self) -> str:
        """Dollars since the model's first step, over all restarts; of the devices only if their price is known."""
        spent = self._model.metrics_builder().state_dict()["cum_state"].get("costs/cum/all")
        return f"${spent:.2f}" if spent is not None else "–"


def _spread(rewards: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.fmean(rewards):+.3f} ± {statistics.pstdev(rewards):.3f}".rjust(14)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
