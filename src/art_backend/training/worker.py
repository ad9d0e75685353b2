"""The trainer process: ``python -m art_backend.training.worker``.

Commands arrive on standard input and events leave on standard output, one JSON object a line. Everything else that is
printed goes to standard error, which is the log. Batches come in a file, named by the command. The process ends at once
when its input ends: nothing is lost, because a checkpoint appears whole or not at all.

    {"command": "setup", "setup": {…}, "threads": 2}    → {"event": "ready"}
    {"command": "train", "batch": "/path/batch.json"}   → {"event": "progress", "done": …, "total": …}*, {"event": "result", …}
    any command                                         → {"event": "alive"} once a second, until it is answered
    {"command": "rest"}                                 → {"event": "rested"}
    any failure                                         → {"event": "error", "code": …, "message": …, "param": …}
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import ConfigDict, TypeAdapter

from art.wire import ErrorCode
from art_backend.errors import ServiceError
from art_backend.training.types import AnyInput, ModelSetup, StepOutput

BEAT_S = 1.0
"""Seconds between heartbeats."""

_log = logging.getLogger("art_backend.training.worker")


STEP: TypeAdapter[AnyInput] = TypeAdapter(AnyInput, config=ConfigDict(ser_json_inf_nan="constants"))
"""The file format of a batch: that of supervised fine-tuning has ``examples``, any other ``groups``."""
SETUP: TypeAdapter[ModelSetup] = TypeAdapter(ModelSetup)
OUTPUT: TypeAdapter[StepOutput] = TypeAdapter(StepOutput)


class _Events:
    """Writes events to the stream that was standard output."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._turn = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}) + "\n"
        with self._turn:
            self._stream.write(line)
            self._stream.flush()

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Send a heartbeat every second while the block runs, so that a long step does not count as hung."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_S):
                self.send("alive")

        thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _read_commands(commands: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        if line.strip():
            commands.put(json.loads(line))
    os._exit(0)  # the parent is gone, or ends us


def _serve(commands: "queue.Queue[dict[str, Any]]", events: _Events) -> None:
    with events.alive():
        import torch
        from transformers.utils.logging import disable_progress_bar

        from art_backend.training.trainer import Trainer

    disable_progress_bar()
    trainer: Trainer | None = None
    while True:
        command = commands.get()
        try:
            with events.alive():
                match command["command"]:
                    case "setup":
                        if command["threads"]:
                            torch.set_num_threads(command["threads"])
                        trainer = Trainer(SETUP.validate_python(command["setup"]))
                        events.send("ready")
                    case "train" if trainer is not None:
                        step = STEP.validate_json(Path(command["batch"]).read_bytes())
                        output = trainer.train(
                            step, lambda done, total: events.send("progress", done=done, total=total)
                        )
                        events.send("result", **OUTPUT.dump_python(output, mode="json"))
                    case "rest" if trainer is not None:
                        trainer.rest()
                        events.send("rested")
                    case unknown:
                        raise ServiceError(f"Unknown trainer command {unknown!r}, or no setup before it.")
        except ServiceError as error:
            _log.warning("%s", error.message)
            events.send("error", code=error.code, message=error.message, param=error.param)
        except MemoryError:
            _log.exception("Out of memory")
            message = "The trainer ran out of memory. Lower micro_batch_tokens, or free memory for it."
            events.send("error", code=ErrorCode.TRAINER_FAILED, message=message, param=None)
        except Exception as error:  # noqa: BLE001
            # The last line of defence of a long-lived process: whatever a step raises is an answer, not an exit.
            _log.exception("A command failed")
            message = f"The trainer raised {type(error).__name__}: {error}"
            events.send("error", code=ErrorCode.TRAINER_FAILED, message=message, param=None)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from here on, whatever prints, prints to the log
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True, name="commands").start()
    _serve(commands, _Events(protocol))


if __name__ == "__main__":
    main()
