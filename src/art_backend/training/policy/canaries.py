"""Canaries: short prompts whose greedy log-probability the step moved, to prove which weights an engine serves."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from art_backend.errors import TrainerFailedError
from art_backend.training.policy.base import Policy
from art_backend.training.policy.logits import greedy_logprobs
from art_backend.training.rows.packing import TrainingRow, plain_pack
from art_backend.training.types import Canary

MAX_PROMPT = 96
MIN_PROMPT = 8
WINDOWS = 3
PROMPTS_PER_WINDOW = 3


@dataclass(slots=True)
class CanaryProbe:
    """Measures some prompts before the step, and again after it.

    Each window is the end of a row up to its last trained token. Every position of a window is a candidate prompt, all of
    them measured in one pass.
    """

    windows: list[NDArray[np.int64]]
    before: list[torch.Tensor]

    @classmethod
    def start(cls, rows: list[TrainingRow], policy: Policy) -> "CanaryProbe":
        """Choose windows from the rows with the largest advantages, and measure them under the present weights."""
        ranked = sorted(rows, key=lambda row: (-abs(row.advantage), row.token_ids.tolist()))
        windows: list[NDArray[np.int64]] = []
        for row in ranked:
            stop = int(np.flatnonzero(row.trained)[-1])
            window = row.token_ids[max(0, stop - MAX_PROMPT) : stop]
            if not any(np.array_equal(window, other) for other in windows):
                windows.append(window)
            if len(windows) == WINDOWS:
                break
        return cls(windows, [_measure(window, policy) for window in windows])

    def finish(self, policy: Policy) -> list[Canary]:
        """Measure again; return the prompts of each window that moved most, the most moved first.

        Raises:
            TrainerFailedError: The new weights give no finite log-probability.
        """
        canaries: dict[bytes, Canary] = {}
        for window, before in zip(self.windows, self.before, strict=True):
            after = _measure(window, policy)
            if not bool(after.isfinite().all()):
                raise TrainerFailedError(
                    "The update made log-probabilities non-finite; nothing was saved, and the last version is still"
                    " served. Lower learning_rate, or look for extreme rewards."
                )
            shortest = min(MIN_PROMPT, window.size)  # a few tokens are no prompt
            moved = (after - before).abs()[shortest - 1 :]
            for offset in moved.topk(min(PROMPTS_PER_WINDOW, moved.numel())).indices.tolist():
                prompt = window[: shortest + offset]
                at = prompt.size - 1
                canaries[prompt.tobytes()] = Canary(prompt.tolist(), float(after[at]), float(before[at]))
        return sorted(canaries.values(), key=lambda c: -abs(c.logprob - c.previous_logprob))


def _measure(window: NDArray[np.int64], policy: Policy) -> torch.Tensor:
    """[len(window)]; greedy log-probability after each token."""
    with torch.no_grad():
        hidden = policy.forward(plain_pack(window))
        return greedy_logprobs(hidden, policy.head).cpu()
