"""What a step measures, summed over its packs."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from art_backend.training.losses import MAX_LOG_RATIO, PolicyLoss
from art_backend.training.memory import peak_memory_bytes
from art_backend.training.packing import Pack

Progress = Callable[[int, int], None]
"""(packed tokens done, packed tokens in all)"""


class StepMeter:
    """Sums over the packs of a step.

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
        self._sums: dict[str, float] = dict.fromkeys(
            ("gap", "k3", "weight", "weight_squared", "entropy", "policy", "kl_reference", "low", "high", "norm"), 0.0
        )
        self._gap_max = 0.0
        self._gap_row_max = 0.0
        self.updates = 0
        self.skipped = 0

    def add_pack(
        self, pack: Pack, loss: PolicyLoss, *, start: Tensor, engine: Tensor, entropy: Tensor, rows: Tensor
    ) -> None:
        """Add one pack.

        Args:
            start: [N]; log-probabilities by the trainer before any update of the step.
            engine: [N]; what the engine reported.
            entropy: [N]; of the distribution that each target was drawn from.
            rows: [N]; row of each target.
        """
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
            "entropy": entropy.double().sum().item(),
            "policy": loss.policy,
            "kl_reference": loss.kl_reference,
            "low": loss.clipped_low,
            "high": loss.clipped_high,
        }.items():
            self._sums[name] += value
        self._gap_max = max(self._gap_max, gap.max().item())
        self._gap_row_max = max(self._gap_row_max, row_mean.max().item())
        self._tokens += gap.shape[0]
        self._row_tokens += pack.row_tokens
        self._done += pack.size
        self._on_progress(self._done, self._total)

    def add_update(self, grad_norm: float, applied: bool) -> None:
        """Add one optimiser step; ``grad_norm`` is the norm before clipping."""
        if applied:
            self.updates += 1
            self._sums["norm"] += grad_norm
        else:
            self.skipped += 1

    def metrics(self, *, learning_rate: float, parts: int) -> dict[str, float]:
        """The metrics of the step. Means over nothing are left out.

        Args:
            parts: Minibatches that the step was cut into; losses are means over them.
        """
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
        if not self._tokens:
            return values
        n, sums = self._tokens, self._sums
        values |= {
            "data/packing_ratio": self._row_tokens / self._done,
            "loss/policy": sums["policy"] / parts,
            "loss/kl_reference": sums["kl_reference"] / n,
            "loss/entropy": sums["entropy"] / n,
            "loss/learning_rate": learning_rate,
            "loss/clip_fraction_low": sums["low"] / n,
            "loss/clip_fraction_high": sums["high"] / n,
            "offpolicy/logprob_gap_mean": sums["gap"] / n,
            "offpolicy/logprob_gap_max": self._gap_max,
            "offpolicy/logprob_gap_row_max": self._gap_row_max,
            "offpolicy/kl": sums["k3"] / n,
            "offpolicy/ess": sums["weight"] ** 2 / (n * sums["weight_squared"]),
            "throughput/trainer_tok_per_s": n / seconds,
            "throughput/trainer_packed_tok_per_s": self._done / seconds,
        }
        if self.updates:
            values["loss/grad_norm"] = sums["norm"] / self.updates
        return values


def _device_memory() -> dict[str, float]:
    """Most device memory that tensors ever took, where there is a device."""
    if not torch.cuda.is_available():
        return {}
    return {"throughput/trainer_peak_device_memory_mb": torch.cuda.max_memory_allocated() / 2**20}
