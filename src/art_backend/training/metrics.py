"""The measures of a step, summed over its packs."""

import math
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from art_backend.training.algorithms.losses import MAX_LOG_RATIO, PolicyLoss
from art_backend.training.rows.packing import Pack

Progress = Callable[[int, int], None]
"""(packed tokens done, packed tokens in all)"""


class UpdateMeter(ABC):
    """Counts of every kind of step: packs, tokens, updates.

    Args:
        total: Packed tokens of the step.
        on_progress: Called after each pack.
    """

    def __init__(self, total: int = 0, on_progress: Progress = lambda done, total: None) -> None:
        self._started = time.monotonic()
        self._total = total
        self._on_progress = on_progress
        self._done = 0
        self._row_tokens = 0
        self._tokens = 0
        self._entropy = 0.0
        self._norm = 0.0
        self._learning_rate = 0.0
        self.updates = 0
        self.skipped = 0

    def start_update(self, learning_rate: float) -> None:
        """Count what is added from now on towards the next update."""
        self._learning_rate = learning_rate

    def end_update(self, grad_norm: float) -> None:
        """Count an update; one whose gradient, of norm ``grad_norm`` before clipping, is not finite was skipped."""
        if math.isfinite(grad_norm):
            self.updates += 1
            self._norm += grad_norm
        else:
            self.skipped += 1

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The metrics of the step. Means over nothing are left out."""

    def _count(self, pack: Pack, entropy: Tensor) -> None:
        """Count a pack; ``entropy`` [N] is that of the distribution that each target was drawn from."""
        self._tokens += entropy.shape[0]
        self._entropy += entropy.double().sum().item()
        self._row_tokens += pack.row_tokens
        self._done += pack.size
        self._on_progress(self._done, self._total)

    def _common(self) -> dict[str, float]:
        """Metrics of every kind of step. Means over nothing are left out."""
        seconds = time.monotonic() - self._started
        values = {
            **_device_memory(),
            "data/step_trainer_tokens": float(self._tokens) if self.updates else 0.0,
            "data/step_num_gradient_steps": float(self.updates),
            "data/step_num_gradient_steps_skipped": float(self.skipped),
            "data/step_packed_tokens": float(self._done),
            "data/step_row_tokens": float(self._row_tokens),
            "throughput/trainer_peak_memory_mb": peak_memory_bytes() / 2**20,
        }
        if self._tokens:
            values |= {
                "data/packing_ratio": self._row_tokens / self._done,
                "loss/entropy": self._entropy / self._tokens,
                "throughput/trainer_tok_per_s": self._tokens / seconds,
                "throughput/trainer_packed_tok_per_s": self._done / seconds,
            }
        if self.updates:
            values["loss/grad_norm"] = self._norm / self.updates
        return values


class StepMeter(UpdateMeter):
    """Sums over the packs of a step of reinforcement learning."""

    def __init__(self, total: int = 0, on_progress: Progress = lambda done, total: None) -> None:
        super().__init__(total, on_progress)
        self._known = 0
        """Tokens whose log-probability the engine reported."""
        self._sums: dict[str, float] = dict.fromkeys(
            ("gap", "k3", "weight", "weight_squared", "policy", "kl_reference", "low", "high"), 0.0
        )
        self._gap_max = 0.0
        self._gap_row_max = 0.0

    def add_pack(
        self, pack: Pack, loss: PolicyLoss, *, start: Tensor, engine: Tensor, entropy: Tensor, rows: Tensor
    ) -> None:
        """Add one pack.

        Args:
            start: [N]; log-probabilities by the trainer before any update of the step.
            engine: [N]; what the engine reported, NaN where it is unknown.
            entropy: [N]; of the distribution that each target was drawn from.
            rows: [N]; row of each target.
        """
        known = ~engine.isnan()
        if bool(known.any()):
            self._add_gap(start[known], engine[known], rows[known])
        self._sums["policy"] += loss.policy
        self._sums["kl_reference"] += loss.kl_reference
        self._sums["low"] += loss.clipped_low
        self._sums["high"] += loss.clipped_high
        self._count(pack, entropy)

    def _add_gap(self, start: Tensor, engine: Tensor, rows: Tensor) -> None:
        difference = (start - engine).double()
        gap = difference.abs()
        weight = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        _, row = rows.unique(return_inverse=True)
        per_row = torch.zeros(int(row.max()) + 1, dtype=torch.float64, device=gap.device)
        row_mean = per_row.index_add(0, row, gap) / per_row.index_add(0, row, torch.ones_like(gap))
        for name, value in {
            "gap": gap.sum().item(),
            "k3": (weight - 1 - difference).sum().item(),
            "weight": weight.sum().item(),
            "weight_squared": weight.square().sum().item(),
        }.items():
            self._sums[name] += value
        self._gap_max = max(self._gap_max, gap.max().item())
        self._gap_row_max = max(self._gap_row_max, row_mean.max().item())
        self._known += gap.shape[0]

    def metrics(self) -> dict[str, float]:
        """The metrics of the step; the policy loss is the mean over its updates."""
        values = self._common()
        if not self._tokens:
            return values
        n, known, sums = self._tokens, self._known, self._sums
        values |= {
            "data/step_recomputed_tokens": float(n - known),
            "loss/policy": sums["policy"] / max(self.updates + self.skipped, 1),
            "loss/kl_reference": sums["kl_reference"] / n,
            "loss/learning_rate": self._learning_rate,
            "loss/clip_fraction_low": sums["low"] / n,
            "loss/clip_fraction_high": sums["high"] / n,
        }
        if known:
            values |= {
                "offpolicy/logprob_gap_mean": sums["gap"] / known,
                "offpolicy/logprob_gap_max": self._gap_max,
                "offpolicy/logprob_gap_row_max": self._gap_row_max,
                "offpolicy/kl": sums["k3"] / known,
                "offpolicy/ess": sums["weight"] ** 2 / (known * sums["weight_squared"]),
            }
        return values


class SftMeter(UpdateMeter):
    """Sums over the packs of supervised fine-tuning."""

    def __init__(self, total: int = 0, on_progress: Progress = lambda done, total: None) -> None:
        super().__init__(total, on_progress)
        self._loss = 0.0
        self._batch_losses: list[float] = []

    def start_update(self, learning_rate: float) -> None:
        super().start_update(learning_rate)
        self._batch_losses.append(0.0)

    def add_pack(self, pack: Pack, *, logprobs: Tensor, weights: Tensor, entropy: Tensor) -> None:
        """Add one pack of the current batch. All tensors are [N]."""
        self._loss -= logprobs.double().sum().item()
        self._batch_losses[-1] -= (weights * logprobs).double().sum().item()
        self._count(pack, entropy)

    def metrics(self) -> dict[str, float]:
        """The metrics of the call; losses are means over trained tokens, in nats, each before its batch's update."""
        values = {**self._common(), "loss/learning_rate": self._learning_rate}
        if self._tokens:
            values |= {
                "loss/sft": self._loss / self._tokens,
                "loss/sft_first_batch": self._batch_losses[0],
                "loss/sft_last_batch": self._batch_losses[-1],
            }
        return values


def peak_memory_bytes() -> int:
    """Largest resident size that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _device_memory() -> dict[str, float]:
    """Most device memory that tensors ever took, where there is a device."""
    if not torch.cuda.is_available():
        return {}
    return {"throughput/trainer_peak_device_memory_mb": torch.cuda.max_memory_allocated() / 2**20}
