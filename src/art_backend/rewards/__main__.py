"""The worker: ``python -m art_backend.rewards`` reads requests from standard input and answers on standard output.

One JSON object per line, as in ``art.wire.rewards``. It ends when its input does, so also when its starter dies.
"""

import os
import queue
import sys
import threading
from pathlib import Path
from typing import Annotated, TextIO

from pydantic import Field, TypeAdapter, ValidationError

from art.wire.base import Wire
from art.wire.rewards import LoadReward, RewardFailure, RewardReady, ScoreConversations, Scores, TrainReward
from art_backend.errors import ServiceError

_Request = Annotated[TrainReward | LoadReward | ScoreConversations, Field(discriminator="op")]
_requests: TypeAdapter[TrainReward | LoadReward | ScoreConversations] = TypeAdapter(_Request)


def main() -> None:
    # Libraries print to standard output, which belongs to the answers: they get standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    _serve(lines, answers)


def _read(lines: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # no caller waits for work in progress


def _serve(lines: "queue.SimpleQueue[str]", answers: TextIO) -> None:
    from art_backend.rewards import model

    loaded: model.LoadedReward | None = None
    while True:
        answer: Wire
        try:
            request = _requests.validate_json(lines.get())
            if isinstance(request, ScoreConversations):
                if loaded is None:
                    raise ServiceError("Load a reward model before asking for scores.")
                answer = Scores(scores=loaded.score(request.conversations, request.batch_tokens))
            else:
                loaded = (
                    model.train(request) if isinstance(request, TrainReward) else model.LoadedReward(Path(request.path))
                )
                answer = RewardReady(path=str(loaded.path), report=loaded.report)
        except ValidationError as error:
            problem = error.errors()[0]
            answer = RewardFailure(error=f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}")
        except ServiceError as error:
            answer = RewardFailure(error=str(error))
        answers.write(answer.model_dump_json() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
