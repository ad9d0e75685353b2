"""The file that a measured training leaves, and its verdict."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from art.errors import ARTError
from art.logs.files import write_bytes
from art.logs.statistics import Interval

__all__ = ["Player", "Results", "StepReward"]


class Player(BaseModel):
    """One player over the held-out episodes."""

    name: str
    step: int | None
    """The policy version; ``None`` for a scripted player."""
    episodes: int
    failed: int
    """Episodes that raised an error, and do not count."""
    reward: Interval
    metrics: dict[str, Interval]


class StepReward(BaseModel):
    """Means over the episodes that a training step learned from."""

    step: int
    reward: float
    metrics: dict[str, float] = {}


class Results(BaseModel):
    """A measured training."""

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
    """Other measurements, by name."""
    steps: list[StepReward]
    training_s: float
    """Seconds of training, warm-up included, over all sittings."""
    evaluation_s: float
    peak_memory_bytes: int | None = None
    """Largest memory of all processes together, where it was measured."""
    max_logprob_gap: float | None = None
    """Largest mean |Δ log-probability| between trainer and engine of any row of any step."""
    checkpoint: str | None = None
    """Directory of the tested version, on the backend's machine."""

    def player(self, name: str) -> Player:
        """The player of this name.

        Raises:
            KeyError: The results have no such player.
        """
        for player in self.players:
            if player.name == name:
                return player
        raise KeyError(f"The results have no player {name!r}.")

    @property
    def family(self) -> str:
        """The part of the name that runs of other seeds share."""
        return "-".join(filter(None, [self.example, self.variant, self.form]))

    @property
    def name(self) -> str:
        """The run's own name."""
        return f"{self.family}-seed-{self.seed}"

    @property
    def title(self) -> str:
        """Example and variant."""
        return f"{self.example} ({self.variant})" if self.variant else self.example

    @property
    def start(self) -> Player:
        """The player with which reinforcement learning began: after the warm-up, if there was one."""
        return self.player("after warm-up" if self.warm_up else "base model")

    @property
    def verdict(self) -> str:
        """The conclusion that the intervals allow."""
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
            ARTError: The file is missing, or holds something else.
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
