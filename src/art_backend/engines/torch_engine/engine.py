"""The model loop: one thread that owns the model, the KV cache and all sequences.

Other threads talk to it through ``submit``, ``abort`` and ``call``; everything they ask for happens between two steps.
An error in the loop ends the process with a traceback in the log, so that the supervisor notices; it never hangs.
"""

import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from art_backend.engines.contract import GenerationDelta, PauseMode, SleepTag
from art_backend.engines.torch_engine.adapters import Adapter, AdapterError, Matrices, read_adapter
from art_backend.engines.torch_engine.blocks import BlockCache
from art_backend.engines.torch_engine.model_thread import ModelThread
from art_backend.engines.torch_engine.runner import ModelRunner, WeightsError
from art_backend.engines.torch_engine.sampler import Sampled, sample
from art_backend.engines.torch_engine.scheduler import Scheduler
from art_backend.engines.torch_engine.sequence import Sequence
from art_backend.tokens.grammar.guidance import StructureError

T = TypeVar("T")

Output = tuple[Sequence, GenerationDelta | Exception]

CRASHED = 70
"""Exit code of the process when the model loop failed."""


class UnknownModelError(LookupError):
    """No base model or adapter of that name is loaded."""


class NameTakenError(ValueError):
    """An adapter of that name is loaded already; a new version needs a new name."""


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    busy_s: float = 0.0
    """Time in forward passes and sampling."""
    paused_s: float = 0.0


class Engine:
    """Continuous batching over one model and its adapters.

    Args:
        publish: Called in the model thread with what each step produced.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        served_name: str,
        max_num_seqs: int,
        token_budget: int,
        max_loras: int,
        max_lora_rank: int,
        publish: Callable[[list[Output]], None],
    ) -> None:
        self.runner = runner
        self.served_name = served_name
        """Name of the weights that the model itself has: the base model's, until others are loaded in their place."""
        self.max_loras = max_loras
        self.max_lora_rank = max_lora_rank
        self.counters = Counters()
        self.cache = BlockCache(runner.pool.num_blocks)
        self.scheduler = Scheduler(self.cache, max_num_seqs=max_num_seqs, token_budget=token_budget)
        self.adapters: dict[str, Adapter] = {}
        self.sleeping: set[SleepTag] = set()
        self._publish = publish
        self._next_adapter_id = 1
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._paused_since: float | None = None
        self._draining: list[Future[None]] = []
        self._held: list[Sequence] = []
        self._retired: set[Adapter] = set()

    # --- called from other threads -------------------------------------------------------------------------------

    def start(self, thread: ModelThread) -> None:
        """Run the model loop in ``thread``, which must be the one that loaded the model."""
        thread.submit(self._run)

    def find_adapter(self, model: str) -> Adapter | None:
        """The adapter served as ``model``; ``None`` for the base model.

        Raises:
            UnknownModelError: No such name.
        """
        if model == self.served_name:
            return None
        if model not in self.adapters:
            raise UnknownModelError(
                f"The model {model!r} does not exist. Served: {[self.served_name, *self.adapters]}."
            )
        return self.adapters[model]

    def submit(self, sequence: Sequence) -> None:
        """Start sampling; results come through ``publish``."""
        self._send(lambda: self._accept(sequence))

    def abort(self, sequence: Sequence) -> None:
        """Stop sampling, free what the sequence holds, and deliver nothing more."""
        self._send(lambda: self._abort(sequence))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` in the model thread, between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except (AdapterError, NameTakenError, UnknownModelError, WeightsError) as error:
                future.set_exception(error)

        self._send(run)
        return future

    def load_adapter(self, name: str, path: Path) -> Future[None]:
        """Read a PEFT directory in the caller's thread, then serve it as ``name``.

        Raises:
            AdapterError: It cannot be served.
        """
        weights = read_adapter(path, max_rank=self.max_lora_rank)
        return self.call(lambda: self._install(name, path, weights))

    def unload_adapter(self, name: str) -> Future[None]:
        """Stop serving ``name``; sequences in flight finish on it."""
        return self.call(lambda: self._uninstall(name))

    def load_weights(self, name: str, path: Path) -> Future[None]:
        """Replace the weights of the model itself by those of a Hugging Face folder, and serve them as ``name``.

        The name that they had before is served no more, and nothing of its KV cache is left.

        Raises:
            WeightsError: A completion is still sampled from the present weights, adapters are loaded, or the folder holds
                another model.
        """
        return self.call(lambda: self._replace_weights(name, path))

    def pause(self, mode: PauseMode) -> Future[None]:
        """Freeze (``keep``), finish (``wait``) or end (``abort``) what is in flight; hold what comes later.

        The future is done once no step runs any more.
        """
        done: Future[None] = Future()
        self._send(lambda: self._pause(mode, done))
        return done

    def resume(self) -> Future[None]:
        """Go on."""
        return self.call(self._resume)

    @property
    def is_paused(self) -> bool:
        return self._paused_since is not None and not self._draining

    def sleep(self) -> Future[None]:
        """Give up the accelerator's memory. Nothing runs until both parts are awake again."""
        return self.call(self._sleep)

    def wake_up(self, tags: set[SleepTag]) -> Future[None]:
        """Take back the memory of ``tags``."""
        return self.call(lambda: self._wake_up(tags))

    # --- the model thread ----------------------------------------------------------------------------------------

    def _send(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while True:
                self.obey()
                self.step()
        except BaseException:  # noqa: BLE001 - whatever it was: no model loop, no engine
            traceback.print_exc()
            print("The model loop failed; the engine ends.", file=sys.stderr, flush=True)
            os._exit(CRASHED)

    @property
    def _can_step(self) -> bool:
        return self.scheduler.has_work and not self.is_paused and not self.sleeping

    def obey(self) -> None:
        """Carry out what other threads asked for; wait for it if there is nothing else to do."""
        with self._wake:
            while not self._commands and not self._can_step:
                self._wake.wait()
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()

    def step(self) -> None:
        """Compute one step, if there is anything to compute."""
        if not self._can_step:
            return
        begin = time.perf_counter()
        chunks, copies = self.scheduler.plan()
        if not chunks:
            raise RuntimeError("Sequences wait, but none can run: the scheduler is stuck.")
        logits, sampling = self.runner.forward(chunks, copies)
        sequences = [chunk.sequence for chunk in sampling]
        outputs: list[Output] = []
        for sequence, result in zip(sequences, sample(logits, sequences) if sequences else [], strict=True):
            error = result if isinstance(result, Exception) else _append(sequence, result)
            if error is not None:
                self._finish(sequence)
                outputs.append((sequence, error))
                continue
            self.counters.generated_tokens += 1
            if sequence.finish_reason is not None:
                self._finish(sequence)
            else:
                self.cache.seal(sequence)
            if sequence.stream or sequence.finish_reason is not None:
                outputs.append((sequence, sequence.take_unsent()))
        self.counters.steps += 1
        self.counters.busy_s += time.perf_counter() - begin
        if outputs:
            self._publish(outputs)
        self._settle_drain()

    def _accept(self, sequence: Sequence) -> None:
        self.counters.prompt_tokens += sequence.prompt_length
        if self._paused_since is None:
            self.scheduler.add(sequence)
        else:
            self._held.append(sequence)

    def _abort(self, sequence: Sequence) -> None:
        if sequence.finish_reason is not None:
            return
        sequence.finish_reason = "abort"
        self.counters.aborted += 1
        if sequence in self._held:
            self._held.remove(sequence)
        else:
            self._release(sequence)
        self._settle_drain()

    def _finish(self, sequence: Sequence) -> None:
        self.counters.finished += 1
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        adapter = sequence.adapter
        if adapter in self._retired and not self._in_use(adapter):
            self._retired.discard(adapter)
            self.cache.forget(adapter.id)

    def _in_use(self, adapter: Adapter) -> bool:
        return any(s.adapter is adapter for s in (*self.scheduler.running, *self.scheduler.waiting, *self._held))

    def _install(self, name: str, path: Path, weights: dict[str, Matrices]) -> None:
        if name == self.served_name or name in self.adapters:
            raise NameTakenError(f"The name {name!r} is taken. Load a new version under a new name.")
        if len(self.adapters) >= self.max_loras:
            raise AdapterError(
                f"{self.max_loras} adapters are loaded, as many as --max-loras allows: {list(self.adapters)}. Unload one."
            )
        ready = self.runner.adapters.prepare(weights)
        self.runner.adapters.wrap(list(ready))
        self.adapters[name] = Adapter(self._next_adapter_id, name, path, ready)
        self._next_adapter_id += 1

    def _uninstall(self, name: str) -> None:
        adapter = self.adapters.pop(name, None)
        if adapter is None:
            raise UnknownModelError(f"No adapter {name!r} is loaded. Loaded: {list(self.adapters)}.")
        if self._in_use(adapter):
            self._retired.add(adapter)
        else:
            self.cache.forget(adapter.id)

    def _replace_weights(self, name: str, path: Path) -> None:
        if self.scheduler.has_work or self._held:
            raise WeightsError("Completions are in flight; pause with mode=wait before the weights are replaced.")
        if self.adapters:
            raise WeightsError(f"Adapters of the present weights are loaded: {list(self.adapters)}. Unload them first.")
        self.runner.load_weights(path)
        self.served_name = name
        self.cache.forget()

    def _pause(self, mode: PauseMode, done: "Future[None]") -> None:
        if self._paused_since is None:
            self._paused_since = time.perf_counter()
        if mode == "abort":
            ended = [*self.scheduler.running, *self.scheduler.waiting]
            for sequence in ended:
                self._abort(sequence)
            self._publish([(sequence, sequence.take_unsent()) for sequence in ended])
        if mode == "wait" and self.scheduler.has_work:
            self._draining.append(done)
        else:
            self._stop_draining()
            done.set_result(None)

    def _settle_drain(self) -> None:
        if self._draining and not self.scheduler.has_work:
            self._stop_draining()

    def _stop_draining(self) -> None:
        for waiter in self._draining:
            waiter.set_result(None)
        self._draining.clear()

    def _resume(self) -> None:
        if self._paused_since is None:
            return
        self.counters.paused_s += time.perf_counter() - self._paused_since
        self._paused_since = None
        self._stop_draining()
        for sequence in self._held:
            self.scheduler.add(sequence)
        self._held.clear()

    @property
    def paused_s(self) -> float:
        """Seconds paused so far, a pause that still lasts included."""
        since = self._paused_since
        return self.counters.paused_s + (time.perf_counter() - since if since is not None else 0.0)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting) + len(self._held)

    def _sleep(self) -> None:
        if self.sleeping:
            return
        self.cache.forget()
        held = {block.index for sequence in self.scheduler.running for block in sequence.blocks}
        self.runner.pool.release(sorted(held))
        if self.runner.device.type != "cpu":
            self.runner.move_weights(torch.device("cpu"), list(self.adapters.values()))
            torch.cuda.empty_cache()
        self.sleeping = {"weights", "kv_cache"}

    def _wake_up(self, tags: set[SleepTag]) -> None:
        if "weights" in tags & self.sleeping and self.runner.device.type != "cpu":
            self.runner.move_weights(self.runner.device, list(self.adapters.values()))
        if "kv_cache" in tags & self.sleeping:
            self.runner.pool.restore()
        self.sleeping = self.sleeping - tags


def _append(sequence: Sequence, result: Sampled) -> StructureError | None:
    """Append a sampled token, or say why its structure cannot go on after it."""
    try:
        sequence.append(result.token, result.logprob, result.top_logprobs)
    except StructureError as error:
        return error
    return None
