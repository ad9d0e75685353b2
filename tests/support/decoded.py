"""What the trainer makes of tokens that an engine sampled."""

import numpy as np
import torch

from art.wire import LoraSpec
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.packing import TrainingRow, pack_rows
from art_backend.training.rows.targets import read_targets


def random_policy(base_path, precision="float32"):
    """A trainer's policy whose adapter changes every layer visibly."""
    policy = AdapterPolicy(base_path, LoraSpec(rank=4, alpha=8), precision=precision)
    torch.manual_seed(1)
    policy.weights.copy_(torch.randn_like(policy.weights) * 0.1)
    policy.publish_weights()
    return policy


def trainer_logprobs(policy, decoded, temperature):
    """The log-probabilities of the sampled tokens of each row, in order.

    Args:
        decoded: Rows as (ids, how many at the end were sampled, …).
    """
    rows = []
    for ids, sampled, *_ in decoded:
        trained = np.arange(len(ids)) >= len(ids) - sampled
        rows.append(TrainingRow(np.array(ids), trained, np.full(len(ids), -1.0), temperature, 1.0, 1.0))
    found = [{} for _ in rows]
    for pack in pack_rows(rows, 200):
        targets = read_targets(pack, policy.device)
        with torch.no_grad():
            logprobs = targets.logprobs(policy.forward(pack), policy.head).logprobs.tolist()
        depths = pack.depths[targets.positions[targets.slots].numpy()].tolist()
        for row, depth, logprob in zip(targets.rows.tolist(), depths, logprobs, strict=True):
            found[row][depth] = logprob
    return [[row[depth] for depth in sorted(row)] for row in found]
