"""One training step: from scored trajectories to a checkpoint.

A step starts from the checkpoint of the step before it (step 0 is the base model with a fresh adapter) and depends on
nothing else, so a trainer that was killed goes on exactly where it stood. The trainer knows no algorithm; see ``algorithms``.
"""

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from art.wire import SftOptions, TrainOptions
from art_backend.errors import (
    BadRequestError,
    ConflictError,
    ModelNotAvailableError,
    NotFoundError,
    TrainerFailedError,
)
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.algorithms.presets import PRESETS
from art_backend.training.algorithms.user_code import load_advantage, load_loss
from art_backend.training.memory import return_free_memory
from art_backend.training.metrics import Progress, SftMeter, StepMeter, UpdateMeter
from art_backend.training.optimizers import FlatAdamW, FlatOptimizer, load_optimizer
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.attention import Kind
from art_backend.training.policy.base import Policy
from art_backend.training.policy.canaries import CanaryProbe
from art_backend.training.policy.full import FullPolicy
from art_backend.training.policy.loaded import Loaded
from art_backend.training.rows.batch import Member, StepBatch, build_batch, weigh
from art_backend.training.rows.packing import Pack, TrainingRow, pack_rows
from art_backend.training.rows.sft import build_plan
from art_backend.training.rows.structures import StructureReplay
from art_backend.training.rows.targets import read_targets
from art_backend.training.schedule import learning_rate
from art_backend.training.state import (
    TrainerState,
    fingerprint_base,
    read_state,
    read_tensors,
    write_state,
    write_tensors,
)
from art_backend.training.types import AnyInput, Canary, ModelSetup, SftInput, StepInput, StepOutput
from art_backend.training.update import add_gradient, prepare

MICRO_BATCH_TOKENS = {"cpu": 1_536, "cuda": 16_384}
"""Packed tokens per forward pass when the caller does not say, by device; more where rows are long."""

MIN_ESS = 0.5
"""Effective sample size below which a step warns; that engine and trainer hold the same weights is proven by canaries."""

MAX_NONFINITE = 3
"""Skipped updates in a row after which training stops."""

_RNG = "rng_state"


class Trainer:
    """Trains one model. The model is loaded by the first step.

    Args:
        attention: How packed trees attend; ``None`` takes the fastest of the device.
    """

    def __init__(self, setup: ModelSetup, *, attention: Kind | None = None) -> None:
        self._setup = setup
        self._attention: Kind | None = attention
        self._store = CheckpointStore(setup.checkpoints)
        self._store.clean()
        self._loaded: Loaded | None = None

    def train(self, step: AnyInput, on_progress: Progress = lambda done, total: None) -> StepOutput:
        """Take one step and save its checkpoint.

        Raises:
            BadRequestError: The input is wrong; the message names the field. Nothing changed.
            ConflictError: The step exists, or does not follow the latest checkpoint.
            ModelNotAvailableError: The model cannot be loaded, or the checkpoint is another model's.
            StorageFailedError: The checkpoint could not be read or written.
            TrainerFailedError: The gradient was not finite three times in a row.
        """
        latest = self._store.latest_step()
        if step.step != latest + 1:
            raise ConflictError(
                f"Step {step.step} cannot be trained: the latest checkpoint in {self._store.directory} is that of step {latest}.",
                param="step",
            )
        loaded = self._load(latest)
        self._loaded = None  # until the step is whole: after a failure, weights come from the checkpoint again
        random_state = torch.get_rng_state()
        try:
            if isinstance(step, SftInput):
                output = self._supervise(step, loaded, on_progress)
            else:
                output = self._step(step, loaded, on_progress)
        except BadRequestError:
            if not loaded.changed:  # what was refused before the first update costs no loading
                torch.set_rng_state(random_state)
                self._loaded = loaded
            raise
        loaded.changed = False
        self._loaded = loaded
        return output

    def rest(self) -> None:
        """Give the device's memory back until the next step. On a CPU there is none to give."""
        if self._loaded is not None:
            self._loaded.leave_device()
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()

    def release(self) -> None:
        """Forget the model and give its memory back; the next step loads it again from the latest checkpoint."""
        self._loaded = None
        gc.collect()
        return_free_memory()

    def _load(self, step: int) -> Loaded:
        """Return the model with the weights of ``step``."""
        if self._loaded is not None and self._loaded.state.step == step:
            self._loaded.return_to_device()
            return self._loaded
        setup = self._setup
        directory = self._store.verify(step) if step else None
        self._loaded = None
        policy = self._open_policy()
        optimizer: FlatOptimizer = FlatAdamW(policy.weights)
        state = TrainerState(step=0, base_model=fingerprint_base(setup.base_path))
        torch.manual_seed(setup.lora.seed)
        if directory is not None:
            saved = read_state(directory)
            if saved.base_model != state.base_model:
                raise ModelNotAvailableError(
                    f"The checkpoint {directory} was trained on another base model than {setup.base_path}. "
                    "Register the model under a new name, or with the base model that it was trained on.",
                    param="base_model",
                )
            policy.load(directory)
            tensors = read_tensors(directory)
            if tensors:
                torch.set_rng_state(tensors.pop(_RNG))
                optimizer = load_optimizer(policy.weights, tensors)
            state = saved
        return Loaded(policy, optimizer, state)

    def _open_policy(self) -> Policy:
        setup = self._setup
        if setup.full_finetune:
            return FullPolicy(setup.base_path, precision=setup.precision, attention=self._attention)
        return AdapterPolicy(
            setup.base_path,
            setup.lora,
            precision=setup.precision,
            attention=self._attention,
            max_length=setup.max_sequence_length,
        )

    def _step(self, step: StepInput, loaded: Loaded, on_progress: Progress) -> StepOutput:
        policy, options = loaded.policy, step.options
        started = time.monotonic()
        rate = learning_rate(options, step.step)
        loaded.choose_optimizer(options.optimizer)
        policy.set_checkpointing(options.gradient_checkpointing)
        own = None if options.advantage is None else load_advantage(options.advantage, self._setup.user_code)
        max_length = self._setup.max_sequence_length
        batch = build_batch(
            step,
            vocabulary=policy.vocabulary,
            max_length=max_length,
            advantage=own,
            structures=StructureReplay(self._setup.base_path, policy.vocabulary),
        )
        rows = [row for member in batch.members for row in member.rows]
        probe = CanaryProbe.start(rows, policy) if rows else None
        meter, measured = self._reinforce(batch, step, rate, loaded, on_progress)
        return self._finish(
            step,
            loaded,
            meter,
            probe,
            started=started,
            reason=batch.reason,
            metrics=batch.metrics | measured,
            warnings=batch.warnings + _warn_of_long_rows(rows, options) + _warn_of_gap(measured),
        )

    def _reinforce(
        self, batch: StepBatch, step: StepInput, rate: float, loaded: Loaded, on_progress: Progress
    ) -> tuple[StepMeter, dict[str, float]]:
        """Take the updates of a step: one for each of its parts, in every epoch. Return what they measured."""
        policy, options = loaded.policy, step.options
        token_loss = None if options.loss is None else load_loss(options.loss, self._setup.user_code)
        reduction, max_length = PRESETS[options.algorithm].reduction, self._setup.max_sequence_length
        rows = [row for member in batch.members for row in member.rows]
        budget = options.micro_batch_tokens or _default_budget(rows, policy.device)
        parts = [
            pack_rows(weigh(part, reduction, max_length), budget, share=policy.shares_prefixes)
            for part in _cut(batch.members, options.minibatches, seed=step.step)
        ]
        meter = StepMeter(sum(pack.size for packs in parts for pack in packs) * options.epochs, on_progress)
        work = prepare(parts, policy, options, self._reference(options))
        for part in work * options.epochs:
            policy.gradient.zero_()
            for item in part:
                add_gradient(policy, item, options, token_loss, meter)
            self._apply(options, rate, loaded, meter)
        return meter, meter.metrics(learning_rate=rate, parts=max(len(parts) * options.epochs, 1))

    def _reference(self, options: TrainOptions) -> Path | None:
        """Checkpoint of the reference policy; ``None``: the base model."""
        if options.kl_coef == 0 or options.kl_reference_step == 0:
            return None
        try:
            return self._store.verify(options.kl_reference_step)
        except NotFoundError as error:
            raise BadRequestError(
                f"kl_reference_step: {error.message} Keep that checkpoint, or choose 0 for the base model.",
                param="options.kl_reference_step",
            ) from error

    def _supervise(self, step: SftInput, loaded: Loaded, on_progress: Progress) -> StepOutput:
        """Learn examples: one update for each batch of them."""
        policy, options = loaded.policy, step.options
        started = time.monotonic()
        plan = build_plan(step, vocabulary=policy.vocabulary, max_length=self._setup.max_sequence_length)
        rows = list(plan.rows())
        budget = options.micro_batch_tokens or _default_budget(rows, policy.device)
        parts = [
            (pack_rows(batch.rows, budget, share=policy.shares_prefixes), batch.learning_rate) for batch in plan.batches
        ]
        meter = SftMeter(sum(pack.size for packs, _ in parts for pack in packs), on_progress)
        probe = CanaryProbe.start(rows, policy) if parts else None
        for packs, rate in parts:
            policy.gradient.zero_()
            meter.start_batch()
            for pack in packs:
                _learn(policy, pack, meter)
            self._apply(options, rate, loaded, meter)
        return self._finish(
            step,
            loaded,
            meter,
            probe,
            started=started,
            reason=plan.reason,
            metrics=plan.metrics | meter.metrics(learning_rate=parts[-1][1] if parts else 0.0),
            warnings=plan.warnings + _warn_of_long_rows(rows, options),
        )

    def _finish(
        self,
        step: AnyInput,
        loaded: Loaded,
        meter: UpdateMeter,
        probe: CanaryProbe | None,
        *,
        started: float,
        reason: str | None,
        metrics: dict[str, float],
        warnings: list[str],
    ) -> StepOutput:
        """Measure the canaries again, save the checkpoint, and tell what the step was like."""
        canaries = list[Canary]()
        if probe is not None:
            if meter.updates:
                canaries = probe.finish(loaded.policy)
            else:
                reason = "The gradient was not finite, so the update was skipped."
        loaded.state = replace(loaded.state, step=step.step)
        saving = time.monotonic()
        checkpoint = self._save(loaded, changed=meter.updates > 0)
        metrics = metrics | {"time/step_train_s": saving - started, "time/step_save_s": time.monotonic() - saving}
        return StepOutput(
            step=step.step,
            trained=meter.updates > 0,
            reason=reason,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            warnings=warnings + _warn_of_skips(meter),
            checkpoint=checkpoint,
            canaries=canaries,
        )

    def _apply(self, options: TrainOptions | SftOptions, rate: float, loaded: Loaded, meter: UpdateMeter) -> None:
        """Clip the gradient and update the weights, or skip a gradient that is not finite."""
        gradient, state = loaded.policy.gradient, loaded.state
        loaded.changed = True
        norm = loaded.policy.gradient_norm()
        if not math.isfinite(norm):
            state.nonfinite_in_a_row += 1
            meter.add_update(norm, applied=False)
            if state.nonfinite_in_a_row >= MAX_NONFINITE:
                raise TrainerFailedError(
                    f"The gradient was not finite {MAX_NONFINITE} times in a row. Lower the learning rate, or look for extreme "
                    "rewards; the last checkpoint is whole."
                )
            return
        if norm > options.max_grad_norm:
            gradient.mul_(options.max_grad_norm / norm)
        loaded.optimizer.step(
            gradient,
            learning_rate=rate,
            betas=options.adam_betas,
            weight_decay=options.weight_decay,
        )
        loaded.policy.publish_weights()
        state.nonfinite_in_a_row = 0
        state.optimizer_steps += 1
        meter.add_update(norm, applied=True)

    def _save(self, loaded: Loaded, *, changed: bool) -> Path:
        state = loaded.state
        if not changed and state.step > 1:
            return self._store.link(state.step - 1, state.step, lambda directory: write_state(directory, state))

        def write(directory: Path) -> None:
            loaded.policy.save(directory)
            write_tensors(directory, {**loaded.optimizer.tensors(), _RNG: torch.get_rng_state()})
            write_state(directory, state)

        return self._store.save(state.step, write)


def _learn(policy: Policy, pack: Pack, meter: SftMeter) -> None:
    """Add the gradient of one pack of examples to the policy's."""
    targets = read_targets(pack, policy.device)
    found = targets.logprobs(policy.forward(pack), policy.head)
    (-(targets.weights * found.logprobs).sum()).backward()
    entropy = found.entropy.detach()[targets.slots]
    meter.add_pack(pack, logprobs=found.logprobs.detach(), weights=targets.weights, entropy=entropy)


def _default_budget(rows: Sequence[TrainingRow], device: torch.device) -> int:
    """Packed tokens per forward pass: room for two of the longest row, so that what is shared is not computed too often."""
    longest = max((row.token_ids.size for row in rows), default=0)
    return max(MICRO_BATCH_TOKENS[device.type], 2 * longest)


def _warn_of_gap(measured: dict[str, float]) -> list[str]:
    ess = measured.get("offpolicy/ess", 1.0)
    if ess >= MIN_ESS:
        return []
    return [
        f"The policy is far from the one that sampled what it was trained on: the effective sample size is {ess:.0%}, the mean gap "
        f"{measured['offpolicy/logprob_gap_mean']:.2f} nats a token. Train on fresher rollouts, or lower the learning rate."
    ]


def _warn_of_long_rows(rows: Sequence[TrainingRow], options: TrainOptions | SftOptions) -> list[str]:
    lengths = [row.token_ids.size for row in rows]
    budget = options.micro_batch_tokens or max(lengths, default=0)
    longer = [length for length in lengths if length > budget]
    if not longer:
        return []
    return [
        f"{len(longer)} rows are longer than micro_batch_tokens={budget} (longest: {max(longer)}). They are trained whole, in packs "
        "of their own, which takes more memory than asked for."
    ]


def _cut(members: Sequence[Member], minibatches: int, seed: int) -> list[list[Member]]:
    """Deal trajectories, shuffled, into at most ``minibatches`` parts of nearly equal size."""
    if minibatches == 1 or len(members) < 2:
        return [list(members)] if members else []
    order = np.random.default_rng(seed).permutation(len(members))
    return [[members[i] for i in part] for part in np.array_split(order, min(minibatches, len(members)))]


def _warn_of_skips(meter: UpdateMeter) -> list[str]:
    if not meter.skipped:
        return []
    return [f"{meter.skipped} of {meter.skipped + meter.updates} updates were skipped: the gradient was not finite."]
