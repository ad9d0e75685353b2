"""``art show``: how a model's metrics went, what its rollouts were worth, and what the agent said in one of them."""

import difflib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli.runs import History, SearchedPath, find_history, sparkline_of
from art.cli.targets import BackendOption, JsonOption, KeyOption, fail, print_json
from art.terminal import art_command, path_option, say

if TYPE_CHECKING:
    from art.trajectories import Trajectory, TrajectoryGroup

_NEAREST = 5
_NOT_LOGGED = (
    "Rollouts marked – did not log their conversation: the command below reads it from the backend's records. "
    "`await rollout.fill(trajectory)` in the rollout function logs it."
)
_USUAL = ("train/reward", "val/reward", "test/reward", "loss/")


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME or PROJECT/NAME; add @STEP for one step.")],
    step: Annotated[int | None, typer.Argument(help="List the rollouts logged at this step.")] = None,
    rollout: Annotated[int | None, typer.Argument(help="Print what the agent said in this rollout.")] = None,
    split: Annotated[str, typer.Option(help="Split to show: train, val or your own.")] = "train",
    metric: Annotated[list[str] | None, typer.Option(help="Metrics to show; may be repeated.")] = None,
    path: SearchedPath = Path(".art"),
    backend: BackendOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Show a model's metrics; with STEP, that step's rollouts; with ROLLOUT, its conversation.

    The rollouts of step 3 are those that step 3 trained on; the previous version played them.
    """
    model, _, version = model.partition("@")
    if version:
        if step is not None or not version.isdecimal():
            raise typer.BadParameter("write MODEL@STEP or MODEL STEP, not both.", param_hint="MODEL")
        step = int(version)
    history = find_history(model, path)
    if step is None:
        _show_metrics(history, metric, path, json=json)
        return
    groups = _read_groups(history, split, step)
    if rollout is None:
        _show_rollouts(history, split, step, groups, path, json=json)
        return
    numbered = _number(groups)
    if not 1 <= rollout <= len(numbered):
        fail(f"Step {step} has rollouts 1 to {len(numbered)} of split {split!r}, not {rollout}.")
    group, trajectory = numbered[rollout - 1]
    if trajectory.rollout_id is not None and not trajectory.messages_and_choices:
        _fetch(trajectory, backend, api_key, history.directory.parents[2])
    if json:
        print_json(_as_json(trajectory))
    else:
        _print_transcript(history, split, step, trajectory, f"rollout {rollout} of {len(numbered)} (group {group})")


def _show_metrics(history: History, metric: list[str] | None, path: Path, *, json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    names = metric or [name for name in history.metrics() if name.startswith(_USUAL) and "std_dev" not in name]
    for name in names:
        if not history.series(name):
            fail(_unknown_metric(name, history))
    if json:
        series = {name: [list(point) for point in history.series(name).items()] for name in metric or history.metrics()}
        print_json({"model": history.title, "directory": str(history.directory), "metrics": series})
        return
    table = Table(box=None, header_style="bold", title=f"{history.title}, {history.steps} steps", title_justify="left")
    table.add_column("metric", overflow="fold")
    for column in ("first", "last", "best", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name in names:
        values = list(history.series(name).values())
        best = f"{max(values):.4g}" if "reward" in name else ""
        table.add_row(name, f"{values[0]:.4g}", f"{values[-1]:.4g}", best, sparkline_of(values[-24:]))
    Console(highlight=False).print(table)
    typer.echo(history.directory)
    if steps := _logged_steps(history).get("train"):
        typer.echo(f"Read what the agent said: {art_command()} show {history.title} {steps[-1]}{path_option(path)}")


def _unknown_metric(name: str, history: History) -> str:
    known = history.metrics()
    tails = {one.rpartition("/")[2]: one for one in known}
    near = difflib.get_close_matches(name, known, _NEAREST, cutoff=0.4)
    near += [tails[tail] for tail in difflib.get_close_matches(name.rpartition("/")[2], tails, _NEAREST, cutoff=0.5)]
    named = ", ".join(list(dict.fromkeys(near))[:_NEAREST] or known[:_NEAREST])
    return (
        f"{history.title} has no metric {name!r}. {'Nearest' if near else 'Some'} of its {len(known)}: {named}. "
        f"All: {art_command()} show {history.title} --json"
    )


def _logged_steps(history: History) -> dict[str, list[int]]:
    """The steps whose rollouts were logged, by split."""
    found: dict[str, list[int]] = {}
    for file in sorted(history.directory.glob("trajectories/*/*.parquet")):
        found.setdefault(file.parent.name, []).append(int(file.stem))
    return found


def _read_groups(history: History, split: str, step: int) -> "list[TrajectoryGroup]":
    from art.logs.parquet import read_trajectory_groups_parquet

    file = history.directory / "trajectories" / split / f"{step:04d}.parquet"
    if not file.is_file():
        steps = _logged_steps(history)
        if others := [name for name, logged in steps.items() if step in logged]:
            fail(
                f"Step {step} has no rollouts of split {split!r}, only of {', '.join(others)}: pass --split {others[0]}."
            )
        logged = "; ".join(f"{name} {_ranges(numbers)}" for name, numbers in steps.items()) or "none"
        fail(f"No rollouts were logged at step {step} for {history.title}. Logged steps: {logged}.")
    return read_trajectory_groups_parquet(file)


def _number(groups: "list[TrajectoryGroup]") -> "list[tuple[int, Trajectory]]":
    """The rollouts of a step in order, as they are numbered from 1, each with the number of its group."""
    return [(g, one) for g, group in enumerate(groups, 1) for one in group.trajectories]


def _ranges(numbers: list[int]) -> str:
    """Such as ``1-4, 8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _show_rollouts(
    history: History, split: str, step: int, groups: "list[TrajectoryGroup]", path: Path, *, json: bool
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from art.rollouts.transcript import last_words

    if json:
        print_json(
            [
                {"rollouts": [_as_json(one) for one in group], "failed": [e.message for e in group.exceptions]}
                for group in groups
            ]
        )
        return
    table = Table(box=None, header_style="bold", title=f"{history.title}, step {step}, {split}", title_justify="left")
    for column in ("rollout", "group", "reward", "messages"):
        table.add_column(column, justify="right", no_wrap=True)
    console = Console(highlight=False)
    room = max(console.width - 38, 20)  # beside the other columns
    table.add_column("said last", no_wrap=True, overflow="ellipsis", max_width=room)
    numbered = _number(groups)
    for number, (g, trajectory) in enumerate(numbered, 1):
        count = str(len(trajectory.messages_and_choices) or "–")
        table.add_row(str(number), str(g), f"{trajectory.reward:+.3f}", count, escape(last_words(trajectory)))
    console.print(table)
    for g, group in enumerate(groups, 1):
        for failure in group.exceptions:
            console.print(f"group {g}: a rollout failed: {failure.message or failure.type}", markup=False)
    option = ("" if split == "train" else f" --split {split}") + path_option(path)
    if any(one.rollout_id and not one.messages_and_choices for _, one in numbered):
        say(_NOT_LOGGED, sys.stdout)
    typer.echo(f"Read one: {art_command()} show {history.title} {step} ROLLOUT{option}")


def _print_transcript(history: History, split: str, step: int, trajectory: "Trajectory", which: str) -> None:
    from art.rollouts.transcript import write_transcript
    from art.terminal import terminal_width, wrap

    width = terminal_width()
    version = trajectory.initial_policy_version
    figures = {"reward": trajectory.reward, **trajectory.metrics}
    facts = [f"{name} {value:.4g}" for name, value in figures.items()]
    facts += [f"policy version {version}"] if version is not None else []
    for line in (f"{history.title}, step {step}, {split}, {which}", ", ".join(facts)):
        typer.echo("\n".join(wrap(line, width)))
    typer.echo()
    typer.echo(write_transcript(trajectory, width) or "No conversation was logged with this rollout.")


def _fetch(trajectory: "Trajectory", backend: str | None, api_key: str | None, path: Path) -> None:
    """Fill in the conversations of a rollout that only the backend recorded, from its directory or by its address."""
    from art.rollouts.rollout import fill_in, read_conversations
    from art.wire import RolloutTree

    assert trajectory.rollout_id is not None
    if backend is not None:
        from art.cli.targets import open_backend, run_or_explain

        async def ask() -> RolloutTree:
            async with open_backend(backend, api_key, path) as service:
                return await service.get_rollout(str(trajectory.rollout_id))

        fill_in(trajectory, read_conversations(run_or_explain(ask)))
        return
    command = [sys.executable, "-m", "art_backend.store", str(path), trajectory.rollout_id]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        fail(
            f"The conversation of rollout {trajectory.rollout_id} was not logged, and the backend's record of it cannot be "
            f"read: {reason} Run this on the machine of the backend, or name its address with --backend; to log "
            "conversations, let the rollout end with `await rollout.fill(trajectory)`."
        )
    fill_in(trajectory, read_conversations(RolloutTree.model_validate_json(done.stdout)))


def _as_json(trajectory: "Trajectory") -> dict[str, Any]:
    further = [one.messages() for one in trajectory.additional_histories]
    return {**trajectory.for_logging(), "additional_histories": further, "rollout_id": trajectory.rollout_id}
