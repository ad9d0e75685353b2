"""What the demo shows while it runs: one line per step, and a live bar on a terminal."""

import contextlib
from collections.abc import Callable, Generator, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from art.demo.records import Evaluation, SampleGame, StepRecord
from art.demo.statistics import Estimate, Score
from art.terminal import MessageStream, break_lines

BARS = "▁▂▃▄▅▆▇█"
REWARD_RANGE = (-0.5, 1.0)
MARK_STYLES = {"X": "bold green", "O": "bold red"}

Advance = Callable[[], None]


class Display:
    """Writes to one console; nothing else of the demo prints."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._time_left = ""

    def say(self, text: str | Text = "") -> None:
        """Print a line, on a terminal broken between words. Long paths run on, so that they can be copied."""
        if isinstance(text, str) and self.console.is_terminal:
            text = break_lines(text, self.console.width)
        self.console.print(text, soft_wrap=True, markup=False)

    def title(self, text: str) -> None:
        self.console.print(Text(text, style="bold"), soft_wrap=True)

    @contextlib.contextmanager
    def stage(self, text: str, total: int | None = None, *, announce: bool = False) -> Generator[Advance]:
        """Show what goes on, with a bar over ``total`` units; the yielded function counts one.

        Args:
            announce: Off a terminal, print the text as a line; without it, nothing is shown there.
        """
        if not self.console.is_terminal:
            if announce:
                self.say(f"{text} …")
            yield lambda: None
            return
        columns = (
            SpinnerColumn(),
            TextColumn(
                "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
            ),
            BarColumn(bar_width=16),
            *([MofNCompleteColumn()] if total else [TimeElapsedColumn()]),
            TextColumn(self._time_left, markup=False),
        )
        progress = Progress(*columns, console=self.console, transient=True, expand=True, redirect_stderr=False)
        # The library draws bars of its own on a terminal's standard error; here, only its messages are wanted.
        with contextlib.redirect_stderr(MessageStream(progress.console)), progress:
            task = progress.add_task(text, total=total)
            yield lambda: progress.advance(task)

    def steps_header(self) -> None:
        self.say(
            Text(
                f"{'step':>4}  {'reward ± 95 %':>14}  {'wins':>5}  {'illegal':>7}  {'tokens/s':>8}  {'time':>5}  left",
                "bold",
            )
        )

    def step_row(self, record: StepRecord, left_s: float) -> None:
        """One line on a finished step. ``tokens/s`` counts sampled tokens while games are played."""
        self._time_left = f"~{clock(left_s)} left"
        self.say(
            f"{record.step:>4}  {mean_interval(record.score.reward):>14}  "
            f"{percent(record.score.wins.value):>5}  {percent(record.score.illegal.value):>7}  "
            f"{record.tokens_per_s:>8.0f}  {clock(record.seconds):>5}  {clock(left_s)}"
        )

    def result_table(self, before: Evaluation, after: Evaluation, random_player: Score) -> None:
        """Before and after, beside a player who only knows the rules."""
        table = Table(
            title=f"{before.score.games} held-out games before and after, 95 % intervals",
            title_justify="left",
            box=SIMPLE,
        )
        table.add_column("")
        for heading in ("before", "after", "random player"):
            table.add_column(heading, justify="right")
        scores = (before.score, after.score, random_player)
        table.add_row("reward", *(mean_interval(score.reward) for score in scores))
        for name in ("wins", "draws", "losses", "illegal"):
            label = "illegal games" if name == "illegal" else name
            table.add_row(label, *(percent_interval(getattr(score, name)) for score in scores))
        self.console.print(table)

    def sample_games(self, before: SampleGame, after: SampleGame) -> None:
        """One game of each policy, side by side."""
        table = Table.grid(padding=(0, 6))
        table.add_row(Text("A game before training", "bold"), Text("The same opponent after training", "bold"))
        table.add_row(draw_game(before), draw_game(after))
        self.console.print(table)

    def sparkline_row(self, rewards: Sequence[float]) -> None:
        if rewards:
            self.say(f"Reward per step  {rewards[0]:+.2f} {sparkline(rewards, *REWARD_RANGE)} {rewards[-1]:+.2f}")


def draw_game(game: SampleGame) -> Text:
    """The boards of a game in a row of small grids, the agent's answers above, its end below."""
    text = Text()
    for start in range(0, len(game.boards), 3):
        row = game.boards[start : start + 3]
        answers = game.answers[start : start + 3]
        text.append("  ".join(f"→ {shorten(answer)}".ljust(7) for answer in answers) + "\n", "cyan")
        for line in (0, 3, 6):
            for board in row:
                for square in board[line : line + 3]:
                    text.append("· " if square.isdigit() else f"{square} ", MARK_STYLES.get(square, "dim"))
                text.append("   ")
            text.append("\n")
    text.append(f"{game.outcome}, reward {game.reward:+.1f}", "bold")
    return text


def shorten(answer: str, width: int = 5) -> str:
    """An answer as it fits above a small board; control characters are shown, not obeyed."""
    shown = answer.strip() if answer.strip().isprintable() else repr(answer)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """One bar per value, on the scale from ``low`` to ``high``."""
    top = len(BARS) - 1
    return "".join(BARS[max(0, min(top, round((value - low) / (high - low) * top)))] for value in values)


def clock(seconds: float) -> str:
    """Minutes and seconds, such as ``2:05``."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def percent_interval(share: Estimate) -> str:
    """Such as ``3 % (1–6)``."""
    return f"{percent(share.value)} ({100 * share.low:.0f}–{100 * share.high:.0f})"


def mean_interval(mean: Estimate) -> str:
    """Such as ``+0.61 ± 0.09``; the interval of a mean is symmetric."""
    return f"{mean.value:+.2f} ± {mean.high - mean.value:.2f}"
