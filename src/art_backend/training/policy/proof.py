"""Before a model is trained, it is compared with itself: a tree of rows against each row alone, as the model computes it.

What rows share must not leak from one branch into another, and what a model does to its logits must be what the trainer does.
Both are measured: a model whose layers carry a state along the tokens, or whose logits change in a way that ``Head`` does not
know, is refused before its first step.
"""

import numpy as np
import torch

from art_backend.errors import ModelNotAvailableError
from art_backend.training.policy.base import Policy
from art_backend.training.rows.packing import Ints, TrainingRow, pack_rows
from art_backend.training.rows.targets import read_targets

STEM, BRANCH = 24, 12
"""Tokens that the rows share, and those of each alone."""

TOLERANCE = {torch.float32: (1e-3, 1e-3), torch.float16: (0.02, 0.1), torch.bfloat16: (0.05, 0.2)}
"""Mean difference of the log-probabilities, in nats, and relative difference of the gradients, that rounding may cause."""


_proven: set[tuple[str, torch.dtype, str, type[Policy]]] = set()


def prove(policy: Policy, name: str) -> None:
    """Return if a packed tree gives the log-probabilities and gradients of its rows.

    Raises:
        ModelNotAvailableError: It does not; the message has the differences. Or a layer attends in an unknown way.
    """
    subject = name, policy.dtype, policy.attention, type(policy)
    if not policy.shares_prefixes or subject in _proven:
        return
    draw = np.random.default_rng(0)
    stem = draw.integers(policy.vocabulary, size=STEM)
    rows = [np.concatenate([stem, draw.integers(policy.vocabulary, size=BRANCH)]) for _ in range(2)]
    policy.gradient.zero_()
    try:
        together = _logprobs_of_tree(policy, rows)
        size = policy.gradient_norm()
        alone = _logprobs_of_rows(policy, rows)
    except ValueError as error:
        raise ModelNotAvailableError(f"base_model: {name!r} cannot be trained: {error}", param="base_model") from error
    gap, gradient_gap = float((together - alone).abs().mean()), policy.gradient_norm() / (size or 1.0)
    policy.gradient.zero_()
    most, most_gradient = TOLERANCE[policy.dtype]
    if not (gap <= most and gradient_gap <= most_gradient):
        raise ModelNotAvailableError(
            f"base_model: {name!r} cannot be trained: two rows packed as a tree differ from each row alone by {gap:.2g} nat a token"
            f" ({most:g} allowed), and their gradients by {gradient_gap:.2g} ({most_gradient:g} allowed). Its layers carry something"
            " along the tokens that does not follow the tree, or its logits change in an unknown way. Choose another model.",
            param="base_model",
        )
    _proven.add(subject)


def _logprobs_of_tree(policy: Policy, rows: list[Ints]) -> torch.Tensor:
    """[rows, BRANCH] log-probabilities of the branches' tokens; adds their gradient, each token's with its sign."""
    trained = np.arange(STEM + BRANCH) >= STEM
    filler = np.zeros(STEM + BRANCH)
    (pack,) = pack_rows([TrainingRow(row, trained, filler, 1.0, 1.0, 1.0) for row in rows], 10_000)
    targets = read_targets(pack, policy.device)
    found = targets.logprobs(policy.forward(pack), policy.head).logprobs
    depths = torch.from_numpy(pack.depths).to(policy.device)[targets.positions[targets.slots]]
    ordered = torch.zeros(len(rows), BRANCH, device=policy.device).index_put((targets.rows, depths + 1 - STEM), found)
    (ordered * _signs(ordered)).sum().backward()
    return ordered.detach()


def _logprobs_of_rows(policy: Policy, rows: list[Ints]) -> torch.Tensor:
    """The same by one plain call for each row; subtracts the gradient."""
    found: list[torch.Tensor] = []
    for row in rows:
        logprobs = torch.log_softmax(policy.logits(row)[STEM - 1 : -1].float(), dim=-1)
        tokens = torch.from_numpy(row[STEM:]).to(policy.device)
        found.append(logprobs.gather(1, tokens[:, None])[:, 0])
        (-found[-1] * _signs(found[-1])).sum().backward()
    return torch.stack(found).detach()


def _signs(logprobs: torch.Tensor) -> torch.Tensor:
    """[…, BRANCH]: 1 and −1 in turn, so that not every token is pushed the same way."""
    return 1.0 - 2.0 * (torch.arange(BRANCH, device=logprobs.device) % 2)
