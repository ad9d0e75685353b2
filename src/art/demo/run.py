"""The demo from start to end: evaluate, train step by step, evaluate again, show what changed."""

import importlib.util
import itertools
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

import art
from art.demo.display import Display
from art.demo.game import Outcome, play_at_random
from art.demo.memory import PeakMemory
from art.demo.overlapped import read_records, train_overlapped
from art.demo.plot import plot_run
from art.demo.records import Evaluation, Results, RunConfig, RunDirectory, SampleGame, StepRecord
from art.demo.rollout import play
from art.demo.statistics import Score, score_games, score_of
from art.errors import ARTError, MissingExtraError, ModelNotAvailableError
from art.experiment.seeds import SEEDS_PER_RUN, TRAINING_SEEDS_FROM
from art.terminal import art_command

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROJECT = "demo"
MAX_SEQUENCE_LENGTH = 512
"""A whole game, with the example before it, has fewer than 250 tokens."""
LORA_RANK, LORA_ALPHA = 16, 32

INTERRUPTED = 130
"""Exit code of a command that was stopped with Ctrl-C, by the shells' convention."""

RANDOM_GAMES_PER_OPPONENT = 10

Model = art.TrainableModel[Any, Any]


@dataclass(frozen=True)
class DemoOptions:
    """What ``art demo`` was asked for."""

    output: Path
    seed: int = 1
    steps: int = 8
    groups: int = 16
    """Opponents per step."""
    group_size: int = 8
    """Games against each of them."""
    learning_rate: float = 6e-4
    episodes: int = 200
    """Held-out games of each evaluation."""
    base_model: str = BASE_MODEL
    max_staleness: int | None = None
    """Train by ``art.train``, on games of so many policy versions; ``None`` trains by the explicit loop."""
    engine: str = "auto"
    backend_url: str | None = None
    """``None`` starts a backend on this machine."""
    api_key: str | None = None


async def run_demo(options: DemoOptions, display: Display) -> Results:
    """Run the demo, or take it up where it was stopped; a finished run is shown again.

    Raises:
        ARTError: With what to do about it. What was done is kept.
    """
    directory = RunDirectory(options.output)
    config = directory.open(
        RunConfig(
            seed=options.seed,
            groups=options.groups,
            group_size=options.group_size,
            learning_rate=options.learning_rate,
            episodes=options.episodes,
            base_model=options.base_model,
            max_staleness=options.max_staleness,
            model_name=f"tic-tac-toe-{secrets.token_hex(3)}",
        )
    )
    finished = directory.read_results()
    if finished is not None and finished.after.step >= options.steps:
        display.title(f"This run is finished: {finished.after.step} steps in {directory.path}.")
        show_results(finished, directory, options, display)
        display.say("To start over, add --fresh; to train on, ask for more --steps.")
        return finished

    display.title(f"ART demo: {options.base_model.rsplit('/', 1)[-1]} learns tic-tac-toe (seed {options.seed})")
    local = options.backend_url is None
    if local:
        prepare_base_model(options.base_model)
        backend: art.RemoteBackend = art.LocalBackend(path=directory.path, serve_arguments=["--engine", options.engine])
    else:
        backend = art.RemoteBackend(options.backend_url or "", options.api_key)

    earlier_s, earlier_peak = directory.read_spent()
    started = time.monotonic()
    memory = PeakMemory() if local else None
    try:
        async with backend:
            if memory is not None:
                memory.start()
            model = make_model(config, directory)
            with display.stage("starting the backend", announce=True):
                await model.register(backend)
            before, steps = await _train(model, backend, config, options, directory, display)
            last = await model.get_step()
            after = await _evaluate_once("after", model, last, config, directory, display)
            checkpoints = {one.step: one.path for one in await backend.list_checkpoints(model)}
    finally:
        peak = max(earlier_peak, memory.stop() if memory is not None else 0)
        total_s = earlier_s + time.monotonic() - started
        directory.write_spent(total_s, peak)

    results = Results(
        config=config,
        before=before,
        after=after,
        random_player=score_random_player(config.episodes),
        steps=steps,
        training_s=sum(record.seconds for record in steps),
        total_s=total_s,
        peak_memory_bytes=peak if local else None,
        max_logprob_gap=max((r.metrics[GAP] for r in steps if GAP in r.metrics), default=None),
        checkpoint=checkpoints.get(last),
        finished_at=time.time(),
    )
    directory.write_results(results)
    show_results(results, directory, options, display)
    return results


GAP = "offpolicy/logprob_gap_row_max"


def make_model(config: RunConfig, directory: RunDirectory) -> Model:
    """The model that learns, with an adapter that starts from the run's seed."""
    return art.TrainableModel(
        name=config.model_name,
        project=PROJECT,
        base_model=config.base_model,
        base_path=str(directory.path),
        _internal_config={
            "init_args": {"max_seq_length": MAX_SEQUENCE_LENGTH},
            "peft_args": {"r": LORA_RANK, "lora_alpha": LORA_ALPHA, "random_state": config.seed},
        },
    )


async def _train(
    model: Model,
    backend: art.RemoteBackend,
    config: RunConfig,
    options: DemoOptions,
    directory: RunDirectory,
    display: Display,
) -> tuple[Evaluation, list[StepRecord]]:
    """Evaluate the base model, then take the steps that are still missing."""
    before = await _evaluate_once("before", model, 0, config, directory, display)
    done = await model.get_step()
    records = directory.read_steps(done)
    if done:
        display.say(f"Resuming after step {done} of {options.steps}.")
    if config.max_staleness is not None:
        seeds = itertools.chain.from_iterable(training_seeds(config, step) for step in itertools.count(1))
        await train_overlapped(model, seeds, config, config.max_staleness, options.steps)
        return before, read_records(model, score_trajectories)
    display.steps_header()
    games = config.groups * config.group_size
    for step in range(done + 1, options.steps + 1):
        label = f"step {step}/{options.steps}"
        started = time.monotonic()
        with display.stage(f"{label}  playing", games) as count:
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(_counted(play(model, seed), count) for _ in range(config.group_size))
                for seed in training_seeds(config, step)
            )
        gathered = time.monotonic()
        with display.stage(f"{label}  training"):
            result = await backend.train(model, groups, learning_rate=config.learning_rate)
            await model.log(groups, split="train", step=result.step, metrics=result.metrics)
        played = list(itertools.chain.from_iterable(groups))
        record = StepRecord(
            step=result.step,
            score=score_trajectories(played),
            gather_s=gathered - started,
            train_s=time.monotonic() - gathered,
            sampled_tokens=int(sum(trajectory.metrics["sampled_tokens"] for trajectory in played)),
            metrics=result.metrics,
        )
        directory.append_step(record)
        records.append(record)
        display.step_row(record, seconds_left(records, options.steps, config))
    return before, records


async def _evaluate_once(
    name: str, model: Model, step: int, config: RunConfig, directory: RunDirectory, display: Display
) -> Evaluation:
    """Play the held-out games with one policy version, unless that was done."""
    stored = directory.read_evaluation(name)
    if stored is not None and stored.step == step:
        return stored
    who = "the base model" if step == 0 else f"the model of step {step}"
    started = time.monotonic()
    with display.stage(f"evaluating {who} in {config.episodes} games", config.episodes, announce=True) as count:
        played = await art.gather_trajectories(
            _counted(play(model, seed, step=step), count) for seed in held_out_seeds(config)
        )
    trajectories = [one for one in played if isinstance(one, art.Trajectory)]
    if len(trajectories) != config.episodes:
        raise ARTError(f"Only {len(trajectories)} of {config.episodes} held-out games were played.", 500)
    evaluation = Evaluation(
        step=step,
        score=score_trajectories(trajectories),
        seconds=time.monotonic() - started,
        sample=sample_game(trajectories[0]),
    )
    await model.log(trajectories, split="val", step=step)
    directory.write_evaluation(name, evaluation)
    return evaluation


async def _counted(game: Coroutine[Any, Any, art.Trajectory], count: Callable[[], None]) -> art.Trajectory:
    trajectory = await game
    count()
    return trajectory


def training_seeds(config: RunConfig, step: int) -> list[int]:
    """The opponents of one step: new ones each step, the same ones when a step is repeated after a stop."""
    first = TRAINING_SEEDS_FROM + config.seed * SEEDS_PER_RUN + step * config.groups
    return list(range(first, first + config.groups))


def held_out_seeds(config: RunConfig) -> range:
    """The opponents of every evaluation, of all runs alike."""
    return range(config.episodes)


def score_trajectories(trajectories: Iterable[art.Trajectory]) -> Score:
    return score_games(
        (Outcome(str(one.metadata["outcome"])), one.reward, int(one.metrics["legal_moves"])) for one in trajectories
    )


def score_random_player(episodes: int) -> Score:
    """A player that picks free squares at random, against the held-out opponents."""
    return score_of(
        play_at_random(seed, agent_seed=episodes + seed * RANDOM_GAMES_PER_OPPONENT + i)
        for seed in range(episodes)
        for i in range(RANDOM_GAMES_PER_OPPONENT)
    )


def sample_game(trajectory: art.Trajectory) -> SampleGame:
    return SampleGame.model_validate({**trajectory.metadata, "reward": trajectory.reward})


def seconds_left(records: Sequence[StepRecord], steps: int, config: RunConfig) -> float:
    """Estimate from the last steps: those that remain, and the evaluation after them."""
    recent = records[-3:]
    per_step = sum(record.seconds for record in recent) / len(recent)
    evaluation = records[-1].gather_s * config.episodes / (config.groups * config.group_size)
    return per_step * (steps - records[-1].step) + evaluation


def prepare_base_model(name: str) -> None:
    """Find or make the base model before the backend starts, where its progress can be seen.

    Raises:
        MissingExtraError: The backend is not installed.
        ARTError: The model was not found; what was tried stands on standard error.
        KeyboardInterrupt: The preparation was interrupted.
    """
    if any(importlib.util.find_spec(module) is None for module in ("art_backend", "torch", "fastapi")):
        raise MissingExtraError("The backend", "backend")
    command = [sys.executable, "-m", "art_backend.models.base", name]
    finished = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if finished.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if finished.returncode != 0:
        raise ModelNotAvailableError(f"The base model {name} is not available; the reason stands above.", 422)


def show_results(results: Results, directory: RunDirectory, options: DemoOptions, display: Display) -> None:
    """Draw the plot, and print what came out of the run and what to type next."""
    plotted = True
    try:
        plot_run(results, directory.plot_path)
    except MissingExtraError as error:
        plotted = False
        display.say(str(error))
    display.say()
    display.result_table(results.before, results.after, results.random_player)
    display.sparkline_row([record.score.reward.value for record in results.steps])
    display.say()
    display.sample_games(results.before.sample, results.after.sample)
    display.say()
    memory = f", peak memory {results.peak_memory_bytes / 1e9:.1f} GB" if results.peak_memory_bytes else ""
    display.say(f"Training took {results.training_s:.0f} s, everything {results.total_s:.0f} s{memory}.")
    if plotted:
        display.say(f"plot        {directory.plot_path}")
    display.say(f"results     {directory.results_path}")
    if results.checkpoint:
        display.say(f"checkpoint  {results.checkpoint}")
    display.say()
    display.title("What to type next")
    command = art_command()
    display.say("Train another one, from another seed:")
    display.say(Text(f"  {command} demo --seed {results.config.seed + 1}"))
    if options.backend_url is None:
        display.say("Serve this one to any OpenAI client:")
        display.say(Text(f"  {command} serve --path {shlex.quote(str(directory.path))}"))
