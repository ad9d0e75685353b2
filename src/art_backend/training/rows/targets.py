"""The trained tokens of a pack as tensors, grouped by the distribution that predicts them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from art_backend.training.policy.logits import Head, SlotMasks, TargetLogprobs, target_logprobs
from art_backend.training.rows.packing import Pack


@dataclass(slots=True)
class PackTargets:
    """Targets [N], ascending by slot. The S slots are the distinct (packed position, temperature, mask) triples among them:
    tokens that rows sampled from the same distribution share its logits."""

    positions: Tensor
    """[S] int64; packed position whose output is the slot's distribution."""
    temperatures: Tensor
    """[S] float32"""
    slots: Tensor
    """[N] int64, ascending."""
    token_ids: Tensor
    """[N] int64"""
    engine_logprobs: Tensor
    """[N] float32"""
    advantages: Tensor
    """[N] float32"""
    weights: Tensor
    """[N] float32"""
    rows: Tensor
    """[N] int64; index of the row that trains the token."""
    masks: SlotMasks | None
    """Where slots allow some tokens only."""

    def logprobs(self, hidden: Tensor, head: Head, *, entropy_gradient: bool = False) -> TargetLogprobs:
        """Log-probability of every target, for final hidden states [T, H] of the pack."""
        return target_logprobs(
            hidden.index_select(0, self.positions),
            head,
            self.temperatures,
            self.slots,
            self.token_ids,
            self.masks,
            entropy_gradient=entropy_gradient,
        )


def read_targets(pack: Pack, device: torch.device) -> PackTargets:
    """Move the targets of a pack to ``device``."""
    targets = pack.targets
    known: dict[bytes | None, int] = {None: 0}
    masks = np.array([known.setdefault(mask, len(known)) for mask in targets.masks], np.float64)
    triples = np.stack([targets.parents.astype(np.float64), targets.temperatures, masks])
    distinct, slots = np.unique(triples, axis=1, return_inverse=True)
    order = np.argsort(slots, kind="stable")

    def ints(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    def floats(values: np.ndarray) -> Tensor:
        with np.errstate(over="ignore"):  # the guard against non-finite gradients catches overflows
            return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)

    return PackTargets(
        positions=ints(distinct[0]),
        temperatures=floats(distinct[1]),
        slots=ints(slots[order]),
        token_ids=ints(targets.token_ids[order]),
        engine_logprobs=floats(targets.engine_logprobs[order]),
        advantages=floats(targets.advantages[order]),
        weights=floats(targets.weights[order]),
        rows=ints(targets.rows[order]),
        masks=SlotMasks.of([mask for mask in known if mask is not None], ints(distinct[2]) - 1),
    )
