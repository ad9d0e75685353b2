"""The work of a training step on its packs: log-probabilities from before it, the loss, the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from art.wire import KlPlace, TrainOptions
from art_backend.training.algorithms.losses import TokenBatch, TokenLoss, log_ratio_to, policy_loss, shape_advantages
from art_backend.training.algorithms.presets import PRESETS, clip_ranges
from art_backend.training.metrics import SftMeter, StepMeter
from art_backend.training.policy.base import Policy
from art_backend.training.rows.packing import Pack
from art_backend.training.rows.targets import PackTargets, read_targets


@dataclass(slots=True)
class PackWork:
    """One pack, and what is known of its targets before the first update. Tensors are [N]."""

    pack: Pack
    targets: PackTargets
    start_logprobs: Tensor | None = None
    """Under the policy at the start of the step; ``None`` where the one update of the step computes them anyway."""
    reference_logprobs: Tensor | None = None


def prepare(
    parts: Sequence[Sequence[Pack]], policy: Policy, options: TrainOptions, reference: Path | None
) -> list[list[PackWork]]:
    """Move the packs of each update to the device, and compute what the weights of the step's start and the reference give.

    Args:
        reference: Checkpoint of the reference policy; ``None``: the base model.
    """
    work = [[PackWork(pack, read_targets(pack, policy.device)) for pack in packs] for packs in parts]
    everything = [item for part in work for item in part]
    shaping = options.kl_coef > 0 and options.kl_in is KlPlace.ADVANTAGE
    with torch.no_grad():
        if len(parts) * options.epochs > 1 or shaping:
            for item in everything:
                item.start_logprobs = _logprobs(policy, item)
        if options.kl_coef > 0:
            with policy.as_reference(reference):
                for item in everything:
                    item.reference_logprobs = _logprobs(policy, item)
        if shaping:
            for part in work:
                _shape(part, options.kl_coef)
    return work


def add_gradient(
    policy: Policy, work: PackWork, options: TrainOptions, token_loss: TokenLoss | None, meter: StepMeter
) -> None:
    """Add the gradient of one pack to the policy's."""
    preset, targets = PRESETS[options.algorithm], work.targets
    new = targets.logprobs(policy.forward(work.pack), policy.head, entropy_gradient=options.entropy_coef > 0)
    entropy = new.entropy[targets.slots]
    before = new.logprobs.detach() if work.start_logprobs is None else work.start_logprobs
    engine = targets.engine_logprobs
    low, high = clip_ranges(options)
    loss = policy_loss(
        TokenBatch(
            logprobs=new.logprobs,
            engine_logprobs=torch.where(engine.isnan(), before, engine),
            advantages=targets.advantages,
            weights=targets.weights,
            sequences=targets.rows,
            start_logprobs=work.start_logprobs,
            reference_logprobs=work.reference_logprobs,
            entropy=entropy if options.entropy_coef > 0 else None,
        ),
        level=preset.level,
        surrogate=preset.surrogate,
        epsilon=low,
        epsilon_high=high,
        importance_cap=options.importance_cap,
        kl_coef=options.kl_coef if options.kl_in is KlPlace.LOSS else 0.0,
        entropy_coef=options.entropy_coef,
        negative_advantage_cap=options.negative_advantage_cap,
        token_loss=token_loss,
    )
    loss.loss.backward()
    meter.add_pack(
        work.pack,
        loss,
        start=before,
        engine=engine,
        entropy=entropy.detach(),
        rows=targets.rows,
    )


def add_sft_gradient(policy: Policy, pack: Pack, meter: SftMeter) -> None:
    """Add the gradient of one pack of examples to the policy's."""
    targets = read_targets(pack, policy.device)
    found = targets.logprobs(policy.forward(pack), policy.head)
    (-(targets.weights * found.logprobs).sum()).backward()
    entropy = found.entropy.detach()[targets.slots]
    meter.add_pack(pack, logprobs=found.logprobs.detach(), weights=targets.weights, entropy=entropy)


def _logprobs(policy: Policy, work: PackWork) -> Tensor:
    return work.targets.logprobs(policy.forward(work.pack), policy.head).logprobs


def _shape(part: Sequence[PackWork], coef: float) -> None:
    """Put the distance to the reference into the advantages of one update."""
    kls: list[Tensor] = []
    for item in part:
        assert item.start_logprobs is not None
        assert item.reference_logprobs is not None
        kls.append(log_ratio_to(item.reference_logprobs, item.start_logprobs))
    mean = float(torch.cat(kls).double().mean())
    for item, kl in zip(part, kls, strict=True):
        item.targets.advantages = shape_advantages(item.targets.advantages, kl, mean, coef)
