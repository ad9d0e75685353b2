"""What is lost when things die: at most the step in progress."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import art
from art.logs.parquet import read_trajectory_groups_parquet

pytestmark = pytest.mark.long

SCRIPT = """
import asyncio, itertools, sys
import art

members = {}

async def rollout(model, scenario):
    print(f"rolling out {scenario}", file=sys.stderr, flush=True)
    async with model.rollout() as run:
        messages = [{"role": "user", "content": f"{scenario}"}]
        for _ in range(2):
            answer = await run.openai_client().chat.completions.create(
                model=model.name, messages=messages, max_tokens=3
            )
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "?"}
            ]
        member = next(members.setdefault(scenario, itertools.count()))
        return run.trajectory(reward=float(member % 2), metadata={"scenario": scenario})

async def main():
    model = art.TrainableModel(name="agent", project="test", base_model=sys.argv[1])
    async with art.LocalBackend() as backend:
        await model.register(backend)
        run = await art.train(
            model, rollout, range(100), groups_per_step=2, group_size=2, max_staleness=1, steps=9,
            learning_rate=1e-3, verbose=True, eval_scenarios=[],
        )
        print(f"done {run.step} {run.stopped}", file=sys.stderr, flush=True)

asyncio.run(main())
"""


class Command:
    """The same command, run again and again in one directory."""

    def __init__(self, directory: Path, base_model: Path) -> None:
        self.directory = directory
        self.first_step = 0
        """The step that the last run found."""
        self._arguments = [sys.executable, "script.py", str(base_model)]
        (directory / "script.py").write_text(SCRIPT)

    def run(self, *, until: str | None = None, times: int = 1, number: int = signal.SIGKILL) -> str:
        """Run it to its end, or until it says something for the n-th time; then send a signal: SIGKILL to all of its
        processes, another one to it alone. Returns what it said."""
        self.first_step = max(self.saved_steps(), default=0)
        said: list[str] = []
        process = subprocess.Popen(self._arguments, cwd=self.directory, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if until is not None and line.startswith(until):
                times -= 1
                if times == 0:
                    me = psutil.Process(process.pid)
                    targets = [*me.children(recursive=True), me] if number == signal.SIGKILL else [me]
                    for target in targets:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            target.send_signal(number)
                    psutil.wait_procs(targets, timeout=30)
        process.wait(60)
        return "".join(said)

    @property
    def model(self) -> Path:
        return self.directory / ".art/test/models/agent"

    def logged_steps(self) -> list[int]:
        path = self.model / "history.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def saved_steps(self) -> list[int]:
        return sorted(int(path.name) for path in (self.model / "checkpoints").glob("[0-9]*"))


@pytest.mark.timeout(900)
def test_the_same_command_goes_on_whatever_it_was_killed_in(tmp_path, tiny_model_path):
    command = Command(tmp_path, tiny_model_path)
    assert "agent: training from step 0 of 9" in command.run(until="rolling out", times=3)
    assert command.logged_steps() == []
    for phase, times in (("waiting for model calls to finish", 2), ("training", 1), ("publishing the new version", 1)):
        before = command.logged_steps()
        said = command.run(until=f"agent: {phase}\n", times=times)
        assert f"from step {command.first_step}" in said or f"after step {command.first_step}" in said
        assert command.first_step in {len(before), len(before) + 1}, "at most the step in progress is lost"
        assert command.logged_steps()[: len(before)] == before, "nothing that was logged is lost"
        assert "done" not in said
    said = command.run(until="agent: training\n", number=signal.SIGINT)
    last = command.saved_steps()[-1]
    assert f"Stopped after step {last}" in said
    assert f"done {last} True" in said
    steps = command.logged_steps()
    assert steps[-1] == last, "a step in progress is finished before a clean stop"
    assert steps == sorted(set(steps)), "no step is trained twice"
    assert f"agent: resuming after step {last} of 9" in command.run(until="rolling out"), "the same command goes on"
    assert command.logged_steps() == steps
    trained = [
        group.trajectories[0].metadata["scenario"]
        for step in steps
        for group in read_trajectory_groups_parquet(command.model / f"trajectories/train/{step:04d}.parquet")
    ]
    assert len(trained) == 2 * len(steps)
    assert len(set(trained)) == len(trained), "no scenario is trained twice"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("victim", "moment", "number"),
    [
        ("engine", "training", signal.SIGKILL),
        ("trainer", "training", signal.SIGKILL),
        ("engine", "saved", signal.SIGKILL),
        ("trainer", "saved", signal.SIGKILL),
        ("engine", "training", signal.SIGSTOP),
    ],
)
async def test_a_process_that_dies_or_hangs_in_mid_step_costs_nothing(
    tmp_path, tiny_model_path, read_history, victim, moment, number
):
    """Calls that were frozen in an engine are asked again by the SDK, and meet a new one; a new trainer is given the same
    groups, but not those of a step that was saved."""
    async with art.LocalBackend(path=str(tmp_path / "art")) as backend:
        model = art.TrainableModel(
            name="agent", project="test", base_model=str(tiny_model_path), base_path=str(tmp_path)
        )
        await model.register(backend)
        killed: list[int] = []
        checkpoints = tmp_path / "art/test/models/agent/checkpoints"
        members = {}

        async def rollout(model, scenario):
            async with model.rollout() as run:
                messages = [{"role": "user", "content": f"{scenario}"}]
                for _ in range(2):
                    answer = await run.openai_client().chat.completions.create(
                        model=model.name, messages=messages, max_tokens=3
                    )
                    messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
                    messages += [{"role": "user", "content": "?"}]
                return run.trajectory(reward=float(next(members.setdefault(scenario, itertools.count())) % 2))

        async def kill():
            while True:
                processes = {one.name.split()[0]: one for one in (await backend.get_health()).processes}
                ready = processes["engine"].state == "paused" and victim in processes
                if ready and (moment == "training" or (checkpoints / "0001").exists()):
                    os.kill(processes[victim].pid, number)
                    killed.append(processes[victim].pid)
                    return
                await asyncio.sleep(0.002)

        killer = asyncio.create_task(kill())
        run = await art.train(
            model, rollout, range(4), groups_per_step=2, group_size=2, max_staleness=1, show_progress=False
        )
        await killer
        assert run.step == 2
        assert sorted(path.name for path in checkpoints.glob("[0-9]*")) == ["0001", "0002"], "each step is trained once"
        rows = [row for row in read_history(model) if "train/reward" in row]
        assert [row["train/exception_rate"] for row in rows] == [0.0] * 2
        assert killed[0] not in [one.pid for one in (await backend.get_health()).processes]
