"""One training with its settings, seed and directory, and the model and backend that belong to it."""

import json
import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.backend.remote import RemoteBackend
from art.errors import ARTError
from art.evaluation import evaluate
from art.local.backend import LocalBackend
from art.logs.files import read_json, write_json
from art.loop.rollouts import RolloutFn
from art.model import TrainableModel
from art.trajectories import Trajectory
from art.types import TrainSFTConfig

__all__ = ["Example", "Run", "Settings", "training_seeds"]

SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The model of small forms: it trains on two CPU cores."""
INTERRUPTED = 130
"""Exit code of a command that was stopped with Ctrl-C, by the shells' convention."""
_SUCCESS_REWARD = 0.5
"""The reward from which a trial counts as a success."""
_TRAINING_SEEDS_FROM = 1_000_000_000
_SEEDS_PER_RUN = 1_000_000


def training_seeds(seed: int) -> range:
    """The seeds of a run's training episodes, in order. Runs of other seeds have others, and held-out episodes have small ones.

    >>> training_seeds(1)[0], training_seeds(2)[0]
    (1001000000, 1002000000)
    """
    first = _TRAINING_SEEDS_FROM + seed * _SEEDS_PER_RUN
    return range(first, first + _SEEDS_PER_RUN)


@dataclass(frozen=True)
class Settings:
    """How a model is trained and tested."""

    base_model: str = SMALL_MODEL
    steps: int = 16
    """Steps of reinforcement learning, after the warm-up."""
    groups_per_step: int = 16
    group_size: int = 8
    learning_rate: float = 3e-4
    max_staleness: int = 0
    max_sequence_length: int = 512
    lora_rank: int = 16
    warm_up: int = 0
    """Scripted episodes that the model is shown first; 0 skips the warm-up."""
    warm_up_learning_rate: float = 5e-4
    episodes: int = 200
    """Held-out episodes of each player."""


@dataclass(frozen=True)
class Example:
    """The forms and variants of an example, from which the command line makes a ``Run``.

    >>> Example(name="guess", small=Settings(steps=4), full=Settings(steps=100)).variants
    ()
    """

    name: str
    small: Settings
    """On two CPU cores."""
    full: Settings
    """On a GPU."""
    variants: Sequence[str] = ()
    """The first is the default."""
    variant_option: str = "--variant"


@dataclass(frozen=True)
class Run:
    """One training run, as requested.

    >>> run = Run(example="guess", form="small", seed=1, settings=Settings(steps=4, warm_up=8), directory=Path("run"))
    >>> run.name, run.last_step
    ('guess-small-seed-1', 5)
    """

    example: str
    form: str
    """``"small"`` or ``"full"``, or the demo's own."""
    seed: int
    settings: Settings
    directory: Path
    """Everything of the run lies here; the same directory resumes it."""
    variant: str | None = None
    """Which of the example's variants."""
    backend_url: str | None = None
    """``None`` starts a backend on this machine."""
    api_key: str | None = None
    engine: str = "auto"
    """Inference engine of a backend on this machine."""
    project: str = "examples"
    shares_backend: bool = False
    """Give the model a unique name, kept in the directory, since runs of the same name may train on the same backend."""

    @property
    def name(self) -> str:
        """Example, variant, form and seed: what distinguishes this run from its siblings."""
        return "-".join(filter(None, [self.example, self.variant, self.form, f"seed-{self.seed}"]))

    @property
    def warm_up_step(self) -> int:
        """The policy version that the warm-up made; 0 without one."""
        return int(self.settings.warm_up > 0)

    @property
    def last_step(self) -> int:
        """The policy version with which the training ends."""
        return self.warm_up_step + self.settings.steps

    @property
    def loop_options(self) -> dict[str, Any]:
        """How the run learns: ``await art.train(model, rollout, scenarios, **run.loop_options)``."""
        settings = self.settings
        return {
            "steps": self.last_step,
            "groups_per_step": settings.groups_per_step,
            "group_size": settings.group_size,
            "max_staleness": settings.max_staleness,
            "learning_rate": settings.learning_rate,
            "eval_scenarios": [],  # ``compare`` has its own test scenarios
        }

    def open_backend(self) -> RemoteBackend:
        """The backend, as a context manager."""
        if self.backend_url is None:
            return LocalBackend(path=self.directory, serve_arguments=["--engine", self.engine])
        return RemoteBackend(self.backend_url, self.api_key)

    def make_model(self) -> TrainableModel[Any, Any]:
        """The model that learns, with an adapter that starts from the run's seed."""
        settings = self.settings
        return TrainableModel(
            name=(self._stored() or {}).get("model", self.name),
            project=self.project,
            base_model=settings.base_model,
            base_path=str(self.directory),
            report_metrics=[],
            _internal_config={
                "init_args": {"max_seq_length": settings.max_sequence_length},
                "peft_args": {"r": settings.lora_rank, "lora_alpha": 2 * settings.lora_rank, "random_state": self.seed},
            },
        )

    async def warm_up(
        self,
        model: TrainableModel[Any, Any],
        lessons: Sequence[Trajectory],
        rollout: RolloutFn[Any],
        trials: Sequence[Any],
        batch_size: int = 4,
    ) -> None:
        """Show the model scripted episodes (supervised fine-tuning) as its first step, unless that was done.

        Prints in how many trials the model succeeds afterwards.

        Args:
            rollout: Runs the agent once on a scenario.
            trials: Scenarios to try afterwards, once each.
            batch_size: Lessons of an update.
        """
        if await model.get_step() >= self.warm_up_step:
            return
        print(f"{self.name}: warm-up on {len(lessons)} scripted episodes", flush=True)
        config = TrainSFTConfig(learning_rate=self.settings.warm_up_learning_rate, batch_size=batch_size)
        await model.train_sft(lessons, config)
        found = await evaluate(self.name, model, rollout, trials, runs=1)
        succeeded = sum(reward >= _SUCCESS_REWARD for rewards in found.rewards for reward in rewards)
        verdict = f"{self.name}: {succeeded} of {len(trials)} test rollouts succeed now (reward of at least {_SUCCESS_REWARD:g})"
        more = "" if succeeded else "; show it more lessons (--warm-up), for there is nothing to reinforce yet"
        print(verdict + more, flush=True)

    @contextmanager
    def timed(self) -> Generator[None]:
        """Add the seconds of the block, however it ends, to those of training."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.note_spent(training=self.training_seconds() + time.monotonic() - started)

    def training_seconds(self) -> float:
        """Seconds of training, over all sittings."""
        return self.spent().get("training", 0.0)

    def spent(self) -> dict[str, float]:
        """The amounts that the run has taken so far, over all sittings."""
        return read_json(self.directory / "spent.json") or {}

    def note_spent(self, **amounts: float) -> None:
        """Replace some of the amounts of ``spent``."""
        write_json(self.directory / "spent.json", self.spent() | amounts)

    def open(self) -> None:
        """Begin the run, or resume it.

        Raises:
            ARTError: The directory holds a run with other settings, or its ``run.json`` cannot be read.
        """
        # More steps and other tests are no other run.
        kept = {key: value for key, value in asdict(self.settings).items() if key not in ("steps", "episodes")}
        wanted = {"name": self.name, **kept}
        stored = self._stored()
        if stored is None:
            named = {"model": f"{self.name}-{secrets.token_hex(3)}"} if self.shares_backend else {}
            write_json(self.directory / "run.json", wanted | named)
            return
        differing = [
            f"{key} is {stored.get(key)!r} there, not {value!r}"
            for key, value in wanted.items()
            if stored.get(key) != value
        ]
        if differing:
            raise ARTError(
                f"{self.directory} holds a run with other settings: {'; '.join(differing)}. Give the same settings to resume "
                "it, another --output, or, with `art demo`, --fresh to set it aside and start over.",
                409,
            )

    def check_begun(self) -> None:
        """Raise unless there is something to evaluate.

        Raises:
            ARTError: Nothing was trained in the directory.
        """
        if self._stored() is None:
            raise ARTError(f"{self.directory} holds no run: train first, with the same options.", 404)

    def set_aside(self) -> Path | None:
        """Rename the directory, if it exists, and return its new path."""
        if not self.directory.exists():
            return None
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        return self.directory.rename(self.directory.with_name(f"{self.directory.name}.old-{stamp}"))

    def _stored(self) -> dict[str, Any] | None:
        path = self.directory / "run.json"
        try:
            return read_json(path)
        except json.JSONDecodeError as error:
            raise ARTError(f"{path} cannot be read: {error}. Delete it, or give another --output.", 500) from error
