"""What a run of ``benchmarks.overlap`` leaves, and the table, verdicts and picture that are made of several."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Row

SPEEDUP, IDLE_SHARE = 2.2, 0.15
STATES = ("busy", "idle", "paused")
SYNCHRONOUS, TRL = "synchronous", "TRL"
MODES = {SYNCHRONOUS: 0, "max_staleness 1": 1, "max_staleness 2": 2}
"""Our ways of training by name, with their ``max_staleness``."""

BEGIN, END = "<!-- measured:begin -->\n", "<!-- measured:end -->"


@dataclass
class Run:
    """One measured run."""

    mode: str
    seed: int
    seconds: float
    """Of ``steps`` trained steps."""
    steps: int
    measured_steps: int
    """How many were taken; with fewer than ``steps``, ``seconds`` is scaled."""
    first_reward: float
    """Of the first step."""
    final_reward: float | None
    """Of the last version, on scenarios that it was not trained on, without waits."""
    shares: dict[str, float]
    """Of the engine's time, by state; empty where it is not known."""
    stale: float | None = None
    """Groups that grew too old; ``None``: there is no such thing."""
    staleness: float | None = None
    """Mean age of the trained tokens, in policy versions."""
    trainer_s: float = 0.0
    timeline: list[list[float]] = field(default_factory=list)
    """[seconds, busy, idle, paused] of each interval."""

    def describe(self) -> str:
        shares = "".join(f", {name} {100 * share:.0f} %" for name, share in self.shares.items())
        final = "" if self.final_reward is None else f" → {self.final_reward:.3f}"
        return (
            f"{self.seconds:.0f} s for {self.steps} steps{shares}, reward {self.first_reward:.3f}{final}, "
            f"{self.stale or 0:.0f} stale groups, mean age {self.staleness or 0:.2f}, trainer {self.trainer_s:.0f} s"
        )


def by_mode(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each way of training, the synchronous one first."""
    names = [*MODES, TRL]
    found = {name: [run for run in runs if run.mode == name] for name in names}
    return {name: group for name, group in found.items() if group}


def judge(runs: Sequence[Run]) -> list[Row]:
    """Hold the means over the seeds against the targets."""
    found = by_mode(runs)
    peers = found[SYNCHRONOUS]
    rows: list[Row] = []
    for mode, ours in found.items():
        if mode in (SYNCHRONOUS, TRL):
            continue
        mine, theirs = (statistics.fmean(run.seconds for run in side) for side in (ours, peers))
        ratio = theirs / mine
        rows.append(
            Row(f"{mode}: time", mine, theirs, SYNCHRONOUS, "s", ratio, f"≥ {SPEEDUP}× the speed", ratio >= SPEEDUP)
        )
        rewards, peer_rewards = ([run.final_reward or 0.0 for run in side] for side in (ours, peers))
        noise = noise_of(rewards, peer_rewards)
        reward, peer_reward = statistics.fmean(rewards), statistics.fmean(peer_rewards)
        rows.append(
            Row(
                f"{mode}: final reward", reward, peer_reward, SYNCHRONOUS, "", reward / peer_reward,
                f"no worse than by noise, {noise:.3f}", reward >= peer_reward - noise,
            )
        )  # fmt: skip
        idle = statistics.fmean(run.shares["idle"] for run in ours)
        rows.append(
            Row(
                f"{mode}: idle for environments", idle, statistics.fmean(run.shares["idle"] for run in peers),
                SYNCHRONOUS, "share", None, f"≤ {IDLE_SHARE:g}", idle <= IDLE_SHARE,
            )
        )  # fmt: skip
    return rows


def noise_of(rewards: Sequence[float], others: Sequence[float]) -> float:
    """Two standard deviations of a reward between seeds, of the side that varies more; at least 0.04, which is two standard
    errors of the test on one seed."""
    spreads = [statistics.stdev(side) if len(side) > 1 else 0.0 for side in (rewards, others)]
    return 2 * max(*spreads, 0.02)


def table(runs: Sequence[Run]) -> list[list[str]]:
    """A heading and a row for each way of training: means over the seeds, ± their standard deviation."""
    found = by_mode(runs)
    base = statistics.fmean(run.seconds for run in found[SYNCHRONOUS])

    def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
        if not values:
            return "–"
        text = form(statistics.fmean(values))
        return text if len(values) == 1 else f"{text} ± {form(statistics.stdev(values))}"

    def share(value: float) -> str:
        return f"{100 * value:.0f} %"

    def line(mode: str, group: list[Run]) -> list[str]:
        scaled = group[0].measured_steps < group[0].steps
        return [
            mode,
            spread([run.seconds for run in group], lambda s: f"{s:.0f} s") + " (scaled)" * scaled,
            f"{base / statistics.fmean(run.seconds for run in group):.1f}×",
            *(spread([run.shares[state] for run in group if run.shares], share) for state in STATES),
            spread([run.stale for run in group if run.stale is not None], lambda n: f"{n:.0f}"),
            spread([run.staleness for run in group if run.staleness is not None], lambda n: f"{n:.2f}"),
            spread([run.first_reward for run in group], lambda r: f"{r:.2f}"),
            spread([run.final_reward for run in group if run.final_reward is not None], lambda r: f"{r:.3f}"),
            str(len(group)),
        ]

    heading = ["", "time", "speed", *STATES, "stale groups", "mean age", "first reward", "final reward", "seeds"]
    return [heading, *(line(mode, group) for mode, group in found.items())]


def markdown(runs: Sequence[Run], task: str, picture: str, command: str) -> str:
    """The section of docs/efficiency.md."""
    heading, *lines = table(runs)
    verdicts = [f"- {row.name}: {row.ours:.3g} {row.unit}".rstrip() + _against(row) for row in judge(runs)]
    rows = ["| " + " | ".join(line) + " |" for line in (heading, ["---"] * len(heading), *lines)]
    trl = [
        "TRL's `GRPOTrainer` has the same model, environment, group and batch sizes; its `rollout_func` is asked for a whole batch, "
        f"so each turn waits for its slowest environment. {run.measured_steps} of its steps were measured."
        for run in runs
        if run.mode == TRL
    ]
    return "\n".join(
        [
            "## Before and after",
            "",
            f"{task} Means over the seeds, ± the standard deviation between them. *Idle* is the time in which the engine could compute "
            "and waits for environments; *final reward* is measured after the run, on scenarios that were not trained on. A random model "
            "learns unevenly: between seeds its reward varies much, and nothing finer than that is shown here.",
            "",
            *rows,
            "",
            *verdicts,
            "",
            *[line for one in trl[:1] for line in (one, "")],
            f"![How the engine's time was spent in the first seed's runs]({picture})",
            "",
            "Made by:",
            "",
            "```bash",
            command,
            "```",
            "",
        ]
    )


def _against(row: Row) -> str:
    verdict = "met" if row.ok else "missed"
    ratio = "" if row.peer is None else f"; {row.peer_name} {row.peer:.3g}"
    speed = f", {row.ratio:.2f}× the speed" if row.name.endswith(": time") and row.ratio is not None else ""
    return f"{ratio}{speed}. Target {row.target}: **{verdict}**"


def write_section(page: Path, section: str) -> None:
    """Replace what stands between the page's two marks.

    Raises:
        ValueError: The page has no such marks.
    """
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no {BEGIN.strip()} … {END}; put them where the section belongs.")
    before, rest = text.split(BEGIN)
    page.write_text(before + BEGIN + section + END + rest.split(END)[1])


def draw(runs: Sequence[Run], path: Path) -> None:
    """How the engine's time was spent in the first seed's runs, one band per way of training."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = {mode: group[0] for mode, group in by_mode(runs).items() if group[0].timeline}
    figure = Figure(figsize=(11, 1.3 + 1.5 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    bands = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    colours = {"busy": "#16a34a", "idle": "#fca5a5", "paused": "#9ca3af"}
    labels = {"busy": "busy with calls", "idle": "idle: waiting for environments", "paused": "paused for training"}
    for axes, (mode, run) in zip(bands, shown.items(), strict=True):
        rows = [row for row in run.timeline if row[0] <= run.seconds]
        times = [row[0] for row in rows]
        shares = [[row[1 + i] / max(sum(row[1:]), 1e-9) for row in rows] for i in range(3)]
        axes.stackplot(
            times, shares, colors=[colours[s] for s in STATES], labels=[labels[s] for s in STATES], step="pre"
        )
        text = ", ".join(f"{state} {100 * run.shares[state]:.0f} %" for state in STATES)
        axes.set_title(f"{mode}: {run.seconds:.0f} s; {text}", loc="left", fontsize=10)
        axes.set(ylim=(0, 1), yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
    bands[-1].set_xlabel("seconds")
    handles, names = bands[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
