"""The demo from start to end: train, test the model before and after on held-out games, show the difference."""

import itertools
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

import art
from art.backend.machine import require
from art.demo.game import Outcome, play_at_random
from art.demo.memory import PeakMemory
from art.demo.rollout import play
from art.errors import MissingExtraError, ModelNotAvailableError
from art.experiment.comparison import Score, compare, summarise
from art.experiment.report import plot
from art.experiment.results import Player, Results
from art.experiment.run import INTERRUPTED, Run, training_seeds
from art.logs.directories import get_model_dir, get_trajectories_split_dir
from art.logs.parquet import read_trajectory_groups_parquet
from art.logs.statistics import Interval
from art.terminal import art_command, break_lines, sparkline
from art.trajectories import Trajectory

SHARES = ("win", "illegal")
"""Metrics that are drawn beside the reward."""
RANDOM_PLAYER = "random player"
_RANDOM_GAMES_PER_OPPONENT = 10
_REWARD_RANGE = (-0.5, 1.0)
_MARK_STYLES = {"X": "bold green", "O": "bold red"}


async def run_demo(run: Run, console: Console) -> Results:
    """Run the demo, or resume it where it was stopped; a finished run is shown again.

    Raises:
        ARTError: With what to do about it. What was done is kept.
        KeyboardInterrupt: It was stopped with Ctrl-C. What was done is kept.
    """
    run.open()
    path, settings = run.directory / "results.json", run.settings
    if path.exists():
        results = Results.read(path)
        tested = results.player("trained")
        if results.step >= settings.steps and tested.episodes + tested.failed == settings.episodes:
            say(console, Text(f"This run is finished: {results.step} steps in {run.directory}.", "bold"))
            show_results(results, run, console)
            say(console, "To start over, add --fresh; to train on, ask for more --steps.")
            return results
    base_name = settings.base_model.rsplit("/", 1)[-1]
    say(console, Text(f"ART demo: {base_name} learns tic-tac-toe (seed {run.seed})", "bold"))
    memory = None
    if run.backend_url is None:
        prepare_base_model(settings.base_model)
        memory = PeakMemory()
        memory.start()
    try:
        say(console, "starting the backend …")
        async with run.open_backend() as backend:
            model = run.make_model()
            await model.register(backend)
            with run.timed():
                trained = await art.train(model, play, training_seeds(run.seed), **run.loop_options)
            if trained.stopped:
                raise KeyboardInterrupt
            say(console, f"playing {settings.episodes} held-out games with each version …")
            results = await compare(run, play, range(settings.episodes), {}, model=model)
            checkpoints = {one.step: one.path for one in await backend.list_checkpoints(model)}
    finally:
        if memory is not None:
            run.note_spent(peak_memory_bytes=max(run.spent().get("peak_memory_bytes", 0), memory.stop()))
    results.players.append(play_randomly(settings.episodes))
    results.checkpoint = checkpoints.get(results.step)
    if memory is not None:
        results.peak_memory_bytes = int(run.spent()["peak_memory_bytes"])
    results.write(path)
    show_results(results, run, console)
    return results


def play_randomly(episodes: int) -> Player:
    """The yardstick: a player who picks free squares at random, several times against each held-out opponent."""
    games = [
        play_at_random(seed, agent_seed=episodes + seed * _RANDOM_GAMES_PER_OPPONENT + i)
        for seed, i in itertools.product(range(episodes), range(_RANDOM_GAMES_PER_OPPONENT))
    ]
    return summarise(
        RANDOM_PLAYER,
        None,
        [Score(game.reward, {outcome.value: float(game.outcome is outcome) for outcome in Outcome}) for game in games],
    )


def prepare_base_model(name: str) -> None:
    """Find or make the base model before the backend starts, where its progress can be seen.

    Raises:
        MissingExtraError: The backend is not installed.
        ARTError: The model was not found; the attempts stand on standard error.
        KeyboardInterrupt: The preparation was interrupted.
    """
    require("The demo")
    command = [sys.executable, "-m", "art_backend.models.base", name]
    finished = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if finished.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if finished.returncode != 0:
        raise ModelNotAvailableError(f"The base model {name} is not available; the reason stands above.", 422)


def show_results(results: Results, run: Run, console: Console) -> None:
    """Draw the plot, and print how good the model was before and after, and what to type next."""
    picture = run.directory / "reward.png"
    try:
        plot([results], picture, SHARES)
        drawn = f"plot        {picture}"
    except MissingExtraError as error:
        drawn = str(error)
    say(console)
    console.print(result_table(results))
    if rewards := [step.reward for step in results.steps]:
        say(console, f"Reward per step  {rewards[0]:+.2f} {sparkline(rewards, *_REWARD_RANGE)} {rewards[-1]:+.2f}\n")
    games = [find_game(run, step) for step in (0, results.step)]
    headings = ("A game before training", "The same opponent after training")
    grid = Table.grid(padding=(0, 6))
    grid.add_row(*(Text(heading, "bold") for heading in headings))
    grid.add_row(*(Text() if game is None else draw_game(game) for game in games))
    console.print(grid)
    memory = f", peak memory {results.peak_memory_bytes / 1e9:.1f} GB" if results.peak_memory_bytes else ""
    say(console, f"\nTraining took {results.training_s:.0f} s, the test {results.evaluation_s:.0f} s{memory}.")
    say(console, drawn)
    say(console, f"results     {run.directory / 'results.json'}")
    if results.checkpoint:
        say(console, f"checkpoint  {results.checkpoint}")
    say(console)
    say(console, Text("What to type next", "bold"))
    say(console, "Train another one, from another seed:")
    say(console, Text(f"  {art_command()} demo --seed {run.seed + 1}"))
    if run.backend_url is None:
        say(console, "Serve this one to any OpenAI client:")
        say(console, Text(f"  {art_command()} serve --path {shlex.quote(str(run.directory))}"))


def say(console: Console, text: str | Text = "") -> None:
    """Print a line, on a terminal broken between words. Long paths run on, so that they can be copied."""
    if isinstance(text, str) and console.is_terminal:
        text = break_lines(text, console.width)
    console.print(text, soft_wrap=True, markup=False)


def result_table(results: Results) -> Table:
    """Before and after, beside a player who only knows the rules."""
    players = [results.player(name) for name in ("base model", "trained", RANDOM_PLAYER)]
    title = f"{players[0].episodes} held-out games before and after, 95 % intervals"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("")
    for heading in ("before", "after", RANDOM_PLAYER):
        table.add_column(heading, justify="right")
    table.add_row("reward", *(show_mean(player.reward) for player in players))
    for label, name in (("wins", "win"), ("draws", "draw"), ("losses", "loss"), ("illegal games", "illegal")):
        table.add_row(label, *(show_share(player.metrics[name]) for player in players))
    return table


def find_game(run: Run, step: int) -> Trajectory | None:
    """A version's game against the first held-out opponent, if it was logged on this machine."""
    directory = get_trajectories_split_dir(get_model_dir(run.make_model(), str(run.directory)), "val")
    file = Path(directory, f"{step:04d}.parquet")
    groups = read_trajectory_groups_parquet(file) if file.exists() else []
    return next((game for group in groups for game in group if game.metadata.get("seed") == 0), None)


def draw_game(game: Trajectory) -> Text:
    """The boards of a game in a row of small grids, the agent's answers above, its end below."""
    played: dict[str, Any] = dict(game.metadata)
    boards, answers = played["boards"], played["answers"]
    text = Text()
    for start in range(0, len(boards), 3):
        text.append("  ".join(f"→ {shorten(answer)}".ljust(7) for answer in answers[start : start + 3]) + "\n", "cyan")
        for line in (0, 3, 6):
            for board in boards[start : start + 3]:
                for square in board[line : line + 3]:
                    text.append("· " if square.isdigit() else f"{square} ", _MARK_STYLES.get(square, "dim"))
                text.append("   ")
            text.append("\n")
    text.append(f"{played['outcome']}, reward {game.reward:+.1f}", "bold")
    return text


def shorten(answer: str, width: int = 5) -> str:
    """An answer as it fits above a small board; control characters are shown, not obeyed."""
    shown = answer.strip() if answer.strip().isprintable() else repr(answer)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def show_share(share: Interval) -> str:
    """Such as ``3 % (1–6)``."""
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f}–{100 * share.high:.0f})"


def show_mean(mean: Interval) -> str:
    """Such as ``+0.61 ± 0.09``; the interval of a mean is symmetric."""
    return f"{mean.value:+.2f} ± {mean.high - mean.value:.2f}"
