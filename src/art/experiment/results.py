"""What a measured training came to, as a file, and several of them as a table."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from art.errors import ARTError
from art.logs.files import write_bytes
from art.logs.statistics import Interval

__all__ = ["Player", "Results", "StepReward"]


class Player(BaseModel):
    """One player over the held-out episodes.

    >>> share = Interval(0.5, 0.4, 0.6)
    >>> Player(name="trained", step=3, episodes=100, failed=0, reward=share, metrics={}).reward.value
    0.5
    """

    name: str
    step: int | None
    """The policy version; ``None`` for a scripted player."""
    episodes: int
    failed: int
    """Episodes that broke off with an error, and do not count."""
    reward: Interval
    metrics: dict[str, Interval]


class StepReward(BaseModel):
    """What a training step's episodes were worth on average.

    >>> StepReward(step=3, reward=0.25).reward
    0.25
    """

    step: int
    reward: float


class Results(BaseModel):
    """A measured training.

    >>> shares = {"base model": Interval(0.2, 0.1, 0.3), "trained": Interval(0.8, 0.7, 0.9)}
    >>> players = [Player(name=n, step=0, episodes=9, failed=0, reward=r, metrics={}) for n, r in shares.items()]
    >>> results = Results(
    ...     example="guess",
    ...     variant=None,
    ...     form="small",
    ...     seed=1,
    ...     base_model="m",
    ...     step=4,
    ...     warm_up=0,
    ...     players=players,
    ...     steps=[],
    ...     training_s=9.0,
    ...     evaluation_s=1.0,
    ... )
    >>> results.verdict
    'learned'
    """

    example: str
    variant: str | None
    form: str
    seed: int
    base_model: str
    step: int
    """The policy version that was tested."""
    warm_up: int
    """Scripted episodes that it was shown first."""
    players: list[Player]
    measured: dict[str, Interval] = {}
    """What else was measured, by name."""
    steps: list[StepReward]
    training_s: float
    """Seconds of training, warm-up included, over all sittings."""
    evaluation_s: float

    def player(self, name: str) -> Player:
        """The player of this name.

        Raises:
            KeyError: There is none.
        """
        for player in self.players:
            if player.name == name:
                return player
        raise KeyError(f"The results have no player {name!r}.")

    @property
    def family(self) -> str:
        """What runs that differ in their seeds alone have in common."""
        return "-".join(filter(None, [self.example, self.variant, self.form]))

    @property
    def name(self) -> str:
        """The run's own."""
        return f"{self.family}-seed-{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.example} ({self.variant})" if self.variant else self.example

    @property
    def start(self) -> Player:
        """Where reinforcement learning began: after the warm-up, if there was one."""
        return self.player("after warm-up" if self.warm_up else "base model")

    @property
    def verdict(self) -> str:
        """What the intervals allow to say."""
        base, start, trained = self.player("base model"), self.start, self.player("trained")
        if trained.reward.low > start.reward.high:
            return "learned"
        if trained.reward.high < base.reward.low:
            return "got worse"
        if trained.reward.low > base.reward.high:
            return "learned from the warm-up alone"
        return "did not learn"

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read a file that ``write`` wrote.

        Raises:
            ARTError: There is none, or it says something else.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ARTError(f"{path} is missing: evaluate the run first.", 404) from None
        except ValidationError as error:
            raise ARTError(f"{path} holds no results of an example: {error}", 422) from error

    def write(self, path: Path) -> None:
        """Write a JSON file, whole or not at all."""
        write_bytes(path, (self.model_dump_json(indent=2) + "\n").encode())


def show(value: Interval) -> str:
    """Such as ``0.61 [0.55, 0.67]``."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def clock(seconds: float) -> str:
    """Minutes and seconds, such as ``4:05``."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def table_of_players(results: Results) -> str:
    """One run as a Markdown table, a row for each player."""
    names = list(dict.fromkeys(name for player in results.players for name in player.metrics))
    lines = [f"| {' | '.join(['player', 'episodes', 'reward', *names])} |", "|---" * (3 + len(names)) + "|"]
    for player in results.players:
        version = "" if player.step is None else f", step {player.step}"
        metrics = [show(player.metrics[name]) if name in player.metrics else "" for name in names]
        cells = [f"{player.name}{version}", str(player.episodes), show(player.reward), *metrics]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\n{name}: {show(value)}" for name, value in results.measured.items()]
    return "\n".join(lines)


def table_of_runs(runs: Iterable[Results]) -> str:
    """Several runs as a Markdown table, a row for each."""
    lines = [
        "| example | seed | base model | after warm-up | trained | scripted | verdict | steps | training | evaluation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda one: (one.example, one.variant or "", one.form, one.seed)):
        scripted = [f"{player.name} {show(player.reward)}" for player in run.players if player.step is None]
        cells = [
            run.title if run.form == "small" else f"{run.title}, {run.form}",
            str(run.seed),
            show(run.player("base model").reward),
            show(run.start.reward) if run.warm_up else "–",
            show(run.player("trained").reward),
            ", ".join(scripted) or "–",
            run.verdict,
            str(run.step),
            clock(run.training_s),
            clock(run.evaluation_s),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
