"""The display of ``art.train``: a line per step, and on a terminal what happens now."""

import contextlib
import itertools
import math
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from art.backend import AnyTrainableModel
from art.logs.rows import is_trainable
from art.logs.statistics import Interval, interval
from art.loop.groups import GroupsInFlight
from art.loop.rollouts import GroupRunner
from art.loop.signs import DISTINCT, ENTROPY, USED
from art.loop.training import Evaluated, StepReport
from art.terminal import MessageStream, art_command, break_lines, clock, path_option
from art.trajectories import Trajectory

_RECENT = 5
"""Steps that the estimate of the time left looks back at."""


class Column(NamedTuple):
    """A column of the table of steps."""

    heading: str
    width: int


COLUMNS = (
    Column("step", 4),
    Column("reward ± 95 %", 16),
    Column("used", 5),
    Column("distinct", 8),
    Column("entropy", 7),
    Column("time", 5),
    Column("left", 5),
)
"""The most important first: ``used`` counts groups with a learning signal, ``distinct`` is the share of answers that differ. The
rollouts' own metrics follow, then ``ENGINE_COLUMNS``."""
ENGINE_COLUMNS = (
    Column("cost", 6),
    Column("tokens/s", 8),
    Column("busy", 5),
    Column("idle", 5),
    Column("paused", 6),
    Column("in flight", 9),
    Column("stale", 5),
)
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
        self._evaluations: dict[str, list[tuple[int, list[float | None]]]] = {}
        """Of each split, the steps that were evaluated and the mean reward of each scenario then."""
        self._begun_at, self._unevaluated = 0, False
        self._doing = "starting"
        self._columns: tuple[Column, ...] = ()
        self._named: list[str] = []
        """The rollouts' metrics that have a column: those of the first step."""

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

    def begin(self, step: int, held_out: int | None) -> None:
        """Say where the run stands.

        Args:
            held_out: How many of its scenarios were held out; ``None``: its user decides what is evaluated.
        """
        self._begun_at, self._unevaluated = step, held_out == 0
        of = "" if self._steps is None else f" of {self._steps}, {max(self._steps - step, 0)} to take"
        self._say(f"{self._model.name}: {'resuming after' if step else 'training from'} step {step}{of}")
        if held_out:
            self._say(
                f"The last {held_out} scenarios are held out: evaluated, never trained on (eval_scenarios=[] trains on all)."
            )
        self._columns = ()
        self._doing = "rolling out"

    def training(self, step: int, groups: int) -> None:
        self._doing = f"training step {step} on {groups} groups"

    def trained(self, report: StepReport) -> None:
        self._doing = "rolling out"
        self._recent.append(report.wall_s)
        trajectories = [one for group in report.batch.groups for one in group]
        self._print_headings(trajectories)
        self._print_row(self._row(report, trajectories))

    def evaluated(self, step: int, splits: Mapping[str, Evaluated]) -> None:
        for split, items in splits.items():
            groups = [[item] if isinstance(item, Trajectory) else item.trajectories for item in items]
            self._print_headings(itertools.chain.from_iterable(groups))
            rewards = [[trajectory.reward for trajectory in group] for group in groups]
            means = [statistics.fmean(found) if found else None for found in rewards]
            self._evaluations.setdefault(split, []).append((step, means))
            if runs := sum(map(len, rewards)):
                found = show_interval(_mean_of(means))
                self._say(f"{step:>4} {found:>16} on {split}: {runs} rollout{'' if runs == 1 else 's'}")

    def end(self, step: int, *, stopped: bool) -> None:
        if stopped:
            self._say(f"Stopped after step {step}. The same command resumes from there.")
        for sentence in (*self._verdicts(), *where_to_look(self._model, step)):
            self._say(sentence)

    def _verdicts(self) -> list[str]:
        """One sentence per split: how its last evaluation compares with its first."""
        if self._unevaluated:
            return [
                "No held-out evaluation was made: the rewards above come from the training scenarios only. Pass "
                "scenarios that are never trained on: eval_scenarios=[…], or --eval-scenarios of `art train`."
            ]
        found: list[str] = []
        for split, evaluations in self._evaluations.items():
            (first, before), (last, after) = evaluations[0], evaluations[-1]
            if first == last or len(before) != len(after):
                continue
            pairs = zip(before, after, strict=True)
            change = interval([new - old for old, new in pairs if old is not None and new is not None])
            found.append(
                f"On {split}, step {last} against step {first}: {show_interval(_mean_of(before))} → "
                f"{show_interval(_mean_of(after))}, a change of {show_interval(change)} (95 % intervals)."
            )
        return found

    def _say(self, text: str) -> None:
        shown = break_lines(text, self._console.width) if self._console.is_terminal else text
        self._console.print(shown, markup=False, soft_wrap=True)

    def _print_headings(self, trajectories: Iterable[Trajectory]) -> None:
        """Print them once, when the rollouts' metrics are known."""
        if self._columns:
            return
        self._named = list(dict.fromkeys(name for one in trajectories for name in one.metrics))
        own = (Column(name, max(len(name), 5)) for name in self._named)
        self._columns = (*COLUMNS, *own, *ENGINE_COLUMNS)
        self._print_row([column.heading for column in self._columns], style="bold")

    def _print_row(self, cells: Sequence[str], style: str = "") -> None:
        """Print as many columns as fit the terminal; into a file, all of them."""
        room = self._console.width if self._console.is_terminal else sys.maxsize
        line = ""
        for column, cell in zip(self._columns, cells, strict=True):
            longer = f"{line} {cell:>{column.width}}" if line else f"{cell:>{column.width}}"
            if len(longer) > room:
                break
            line = longer
        self._console.print(Text(line, style), soft_wrap=True)

    def _now(self) -> Text:
        of = f"/{self._steps - self._begun_at}" if self._steps is not None else ""
        return Text(
            f"{self._groups.version - self._begun_at}{of} steps · {self._doing} · {self._groups.ready.qsize()} of "
            f"{self._per_step} groups ready · {self._groups.running} running · {self._runner.running} rollouts",
            style="dim",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _row(self, report: StepReport, trajectories: Sequence[Trajectory]) -> list[str]:
        """The cells of the columns."""
        metrics, groups = report.metrics, report.batch.groups
        means = [statistics.fmean(one.reward for one in group) for group in groups if group.trajectories]
        used = metrics.get(USED, sum(map(is_trainable, groups)))
        tokens = metrics.get("data/step_trainer_tokens")
        rate = f"{tokens / report.wall_s:.0f}" if tokens is not None and report.wall_s > 0 else "–"
        shares = [f"{100 * metrics[name]:.0f} %" if name in metrics else "–" for name in _SHARES]
        in_flight = metrics["pipeline/groups_running"] + metrics["pipeline/groups_ready"]
        return [
            str(report.step),
            show_interval(interval(means)),
            f"{used:.0f}/{len(groups)}",
            f"{100 * metrics[DISTINCT]:.0f} %" if DISTINCT in metrics else "–",
            f"{metrics[ENTROPY]:.2f}" if ENTROPY in metrics else "–",
            clock(report.wall_s),
            self._left(report.step),
            *(
                _show_metric([float(one.metrics[name]) for one in trajectories if name in one.metrics])
                for name in self._named
            ),
            self._cost(),
            rate,
            *shares,
            f"{in_flight:.0f}",
            f"{metrics['pipeline/stale_groups']:.0f}",
        ]

    def _left(self, step: int) -> str:
        return "–" if self._steps is None else clock(statistics.fmean(self._recent) * (self._steps - step))

    def _cost(self) -> str:
        """Dollars since the model's first step, over all restarts; of the devices only if their price is known."""
        spent = self._model.metrics_builder().state_dict()["cum_state"].get("costs/cum/all")
        return f"${spent:.2f}" if spent is not None else "–"


def where_to_look(model: AnyTrainableModel, step: int) -> list[str]:
    """The commands that show what a run did."""
    name, option = f"{model.project}/{model.name}", path_option(Path(model.base_path))
    show = f"{art_command()} show {name}"
    read = f"Read what the agent said: {show} {step}{option}"
    return [f"See how it went: {show}{option}", *([read] if step else [])]


def show_interval(found: Interval | None) -> str:
    """A mean with its 95 % interval, which a single value does not have."""
    if found is None:
        return "–"
    half = found.high - found.value
    return f"{found.value:+.3f} ± {half:.3f}" if math.isfinite(half) else f"{found.value:+.3f}"


def _show_metric(values: Sequence[float]) -> str:
    """The mean; of zeros and ones, as a percentage."""
    if not values:
        return "–"
    mean = statistics.fmean(values)
    return f"{100 * mean:.0f} %" if {*values} <= {0.0, 1.0} else f"{mean:.3g}"


def _mean_of(means: Sequence[float | None]) -> Interval | None:
    return interval([one for one in means if one is not None])
