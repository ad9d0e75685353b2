"""What a run keeps on disk, and where. Each file appears whole or not at all, so a run can be taken up after any stop."""

import secrets
import time
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from art.demo.statistics import Score
from art.errors import ARTError

M = TypeVar("M", bound=BaseModel)


class RunConfig(BaseModel):
    """What defines a run. Taking it up with other values would mix two experiments."""

    seed: int
    groups: int
    group_size: int
    learning_rate: float
    episodes: int
    base_model: str
    max_staleness: int | None = None
    """Of ``art.train``; ``None``: games and training in turns, by the explicit loop."""
    model_name: str
    """The model's name in the backend; unique, since a remote backend may serve many runs."""


class SampleGame(BaseModel):
    """One game to look at."""

    seed: int
    outcome: str
    reward: float
    boards: list[str]
    answers: list[str]


class Evaluation(BaseModel):
    """A held-out evaluation of one policy version."""

    step: int
    score: Score
    seconds: float
    sample: SampleGame


class StepRecord(BaseModel):
    """One training step."""

    step: int
    """The policy version that the step made; its games were played by the one before."""
    score: Score
    gather_s: float
    train_s: float
    sampled_tokens: int
    metrics: dict[str, float]
    """What the trainer measured."""

    @property
    def seconds(self) -> float:
        return self.gather_s + self.train_s

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second of playing."""
        return self.sampled_tokens / self.gather_s if self.gather_s else 0.0


class Results(BaseModel):
    """A finished run, for scripts."""

    config: RunConfig
    before: Evaluation
    after: Evaluation
    random_player: Score
    steps: list[StepRecord]
    training_s: float
    """Seconds of all steps, playing and training."""
    total_s: float
    """Seconds of everything, over all sittings of the run."""
    peak_memory_bytes: int | None
    """Largest memory of all processes of this machine together; ``None`` with a backend elsewhere."""
    max_logprob_gap: float | None
    """Largest mean |Δ log-probability| between trainer and engine that any row of any step had."""
    checkpoint: str | None
    finished_at: float


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def plot_path(self) -> Path:
        return self.path / "reward.png"

    @property
    def results_path(self) -> Path:
        return self.path / "results.json"

    def open(self, wanted: RunConfig) -> RunConfig:
        """Start the run, or take it up.

        Raises:
            ARTError: The directory holds a run with other settings.
        """
        stored = self._read("run.json", RunConfig)
        if stored is None:
            self._write("run.json", wanted)
            return wanted
        differing = [
            f"{name} is {getattr(stored, name)} there, not {getattr(wanted, name)}"
            for name in RunConfig.model_fields
            if name != "model_name" and getattr(stored, name) != getattr(wanted, name)
        ]
        if differing:
            raise ARTError(
                f"{self.path} holds a run with other settings: {'; '.join(differing)}. Use the same settings to resume it, "
                "--output for another directory, or --fresh to set it aside and start over.",
                409,
            )
        return stored

    def set_aside(self) -> Path | None:
        """Rename the directory, if there is one, and return its new path."""
        if not self.path.exists():
            return None
        old = self.path.with_name(f"{self.path.name}.old-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        self.path.rename(old)
        return old

    def read_evaluation(self, name: str) -> Evaluation | None:
        """``before`` or ``after``, if that was done."""
        return self._read(f"{name}.json", Evaluation)

    def write_evaluation(self, name: str, evaluation: Evaluation) -> None:
        self._write(f"{name}.json", evaluation)

    def read_results(self) -> Results | None:
        return self._read("results.json", Results)

    def write_results(self, results: Results) -> None:
        self._write("results.json", results)

    def read_steps(self, up_to: int) -> list[StepRecord]:
        """The records of steps 1 to ``up_to``; the last one of a step counts, a line that was cut off does not."""
        records: dict[int, StepRecord] = {}
        log = self.path / "steps.jsonl"
        for line in log.read_text().splitlines() if log.exists() else []:
            try:
                record = StepRecord.model_validate_json(line)
            except ValidationError:  # the process was killed while it wrote
                continue
            records[record.step] = record
        return [records[step] for step in sorted(records) if step <= up_to]

    def append_step(self, record: StepRecord) -> None:
        log = self.path / "steps.jsonl"
        cut_off = log.exists() and not log.read_bytes().endswith(b"\n")
        with log.open("a") as file:
            file.write(("\n" if cut_off else "") + record.model_dump_json() + "\n")

    def read_spent(self) -> tuple[float, int]:
        """Seconds and peak memory of earlier sittings."""
        spent = self._read("spent.json", Spent)
        return (spent.seconds, spent.peak_memory_bytes) if spent else (0.0, 0)

    def write_spent(self, seconds: float, peak_memory_bytes: int) -> None:
        self._write("spent.json", Spent(seconds=seconds, peak_memory_bytes=peak_memory_bytes))

    def _read(self, name: str, kind: type[M]) -> M | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            return kind.model_validate_json(path.read_text())
        except ValidationError as error:
            raise ARTError(f"{path} cannot be read: {error}. Delete it, or start over with --fresh.", 500) from error

    def _write(self, name: str, content: BaseModel) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f".{name}.partial"
        partial.write_text(content.model_dump_json(indent=2) + "\n")
        partial.replace(self.path / name)


class Spent(BaseModel):
    """What earlier sittings of a run took."""

    seconds: float
    peak_memory_bytes: int
