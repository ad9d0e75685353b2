"""One training with its settings, seed and directory, and the model and backend that belong to it."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from art.errors import ARTError
from art.evaluation import evaluate
from art.local.backend import LocalBackend
from art.logs.files import read_json, write_json
from art.loop.rollouts import RolloutFn
from art.model import TrainableModel
from art.remote import RemoteBackend
from art.trajectories import Trajectory
from art.types import TrainSFTConfig

_SUCCESS_REWARD = 0.5
"""The reward from which a trial counts as a success."""
SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""What small forms train: it runs on two CPU cores."""


@dataclass(frozen=True)
class Settings:
    """How a model is trained and tested.

    >>> Settings(steps=4).groups_per_step
    16
    """

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
    """Scripted episodes that the model is shown first; 0: none."""
    warm_up_learning_rate: float = 5e-4
    episodes: int = 200
    """Held-out episodes of each player."""


class LoopOptions(TypedDict):
    """The keywords of ``art.train`` that settings decide.

    >>> LoopOptions(steps=4, groups_per_step=16, group_size=8, max_staleness=0, learning_rate=3e-4, eval_scenarios=[])["steps"]
    4
    """

    steps: int
    groups_per_step: int
    group_size: int
    max_staleness: int
    learning_rate: float
    eval_scenarios: list[Any]
    """None: an example's ``evaluate.py`` tests on scenarios of its own."""


@dataclass(frozen=True)
class Example:
    """What can be asked of an example.

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
    """One training, as it was asked for.

    >>> run = Run(example="guess", form="small", seed=1, settings=Settings(steps=4, warm_up=8), directory=Path("run"))
    >>> run.name, run.last_step
    ('guess-small-seed-1', 5)
    """

    example: str
    form: str
    """``"small"`` or ``"full"``."""
    seed: int
    settings: Settings
    directory: Path
    """Where everything of the run lies; the same directory takes it up again."""
    variant: str | None = None
    """Which of the example's variants."""
    backend_url: str | None = None
    """``None`` starts a backend on this machine."""
    api_key: str | None = None

    @property
    def name(self) -> str:
        """Of the example, its variant, form and seed: what makes this run another one than its siblings."""
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
    def loop_options(self) -> LoopOptions:
        """How the run learns: ``await art.train(model, rollout, scenarios, **run.loop_options)``."""
        settings = self.settings
        return LoopOptions(
            steps=self.last_step,
            groups_per_step=settings.groups_per_step,
            group_size=settings.group_size,
            max_staleness=settings.max_staleness,
            learning_rate=settings.learning_rate,
            eval_scenarios=[],
        )

    def open_backend(self) -> RemoteBackend:
        """The backend, as a context manager."""
        if self.backend_url is None:
            return LocalBackend(path=self.directory)
        return RemoteBackend(self.backend_url, self.api_key)

    def make_model(self) -> TrainableModel[Any, Any]:
        """The model that learns, with an adapter that starts from the run's seed."""
        settings = self.settings
        return TrainableModel(
            name=self.name,
            project="examples",
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
        """Show the model scripted episodes (supervised fine-tuning), as its first step, unless that was done.

        It says how the loss went, and in how many trials the model succeeds then.

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
        """Count the seconds of the block, however it ends, to those of training."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = {"training": self.training_seconds() + time.monotonic() - started}
            write_json(self.directory / "spent.json", spent)

    def training_seconds(self) -> float:
        """Seconds of training, over all sittings."""
        return float((read_json(self.directory / "spent.json") or {}).get("training", 0.0))

    def open(self) -> None:
        """Begin the run, or take it up.

        Raises:
            ARTError: The directory holds a run with other settings.
        """
        wanted = {"name": self.name, **self._defining()}
        stored = read_json(self.directory / "run.json")
        if stored is None:
            write_json(self.directory / "run.json", wanted)
            return
        differing = [
            f"{key} is {stored.get(key)!r} there, not {value!r}"
            for key, value in wanted.items()
            if stored.get(key) != value
        ]
        if differing:
            raise ARTError(
                f"{self.directory} holds a run with other settings: {'; '.join(differing)}. Give the same settings to go on "
                "with it, or another --output.",
                409,
            )

    def check_begun(self) -> None:
        """Raise unless there is something to evaluate.

        Raises:
            ARTError: Nothing was trained in the directory.
        """
        if not (self.directory / "run.json").exists():
            raise ARTError(f"{self.directory} holds no run: train first, with the same options.", 404)

    def _defining(self) -> dict[str, Any]:
        """Settings that cannot change on the way; more steps and other tests can."""
        return {key: value for key, value in asdict(self.settings).items() if key not in ("steps", "episodes")}
