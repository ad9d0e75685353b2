"""One training step: from scored trajectories, or examples, to a checkpoint.

A step starts from the checkpoint of the step before it (step 0 is the base model with a fresh adapter) and depends on
nothing else, so a killed trainer resumes exactly where it stood. The trainer knows no algorithm; see ``algorithms``.
"""

import ctypes
import gc
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from art.wire import SftOptions, TrainerKind, TrainOptions
from art_backend.errors import BadRequestError, ConflictError, NotFoundError
from art_backend.planning.memory import DEFAULT_BATCH_TOKENS
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.algorithms.presets import PRESETS
from art_backend.training.algorithms.user_code import load_advantage, load_loss
from art_backend.training.learner import Learner
from art_backend.training.metrics import Progress, SftMeter, StepMeter, UpdateMeter
from art_backend.training.optimizers import learning_rate
from art_backend.training.policy.attention import Kind
from art_backend.training.policy.canaries import CanaryProbe
from art_backend.training.rows.batch import Member, StepPlan, Update, build_batch, weigh
from art_backend.training.rows.packing import TrainingRow, pack_rows
from art_backend.training.rows.sft import plan_examples
from art_backend.training.rows.structures import StructureReplay
from art_backend.training.types import AnyInput, ModelSetup, SftInput, StepInput, StepOutput
from art_backend.training.update import add_gradient, add_sft_gradient, prepare

MICRO_BATCH_TOKENS = {"cpu": 1_536, "cuda": DEFAULT_BATCH_TOKENS}
"""Packed tokens per forward pass unless the caller sets them, by device; more where rows are long."""

MIN_ESS = 0.5
"""Effective sample size below which a step warns; that engine and trainer hold the same weights is proven by canaries."""


class Trainer:
    """Trains one model. The first step loads it.

    ``train`` is the whole job; below it, ``Learner`` and ``update`` have the verbs.

    Args:
        attention: How packed trees attend; ``None`` takes the device's fastest.
    """

    def __init__(self, setup: ModelSetup, *, attention: Kind | None = None) -> None:
        self._setup = setup
        self._attention: Kind | None = attention
        self._store = CheckpointStore(setup.checkpoints)
        self._store.clean()
        self._learner: Learner | None = None
        self._kind = TrainerKind.ART
        """The trainer that ``_learner`` was loaded for."""

    def train(self, step: AnyInput, on_progress: Progress = lambda done, total: None) -> StepOutput:
        """Take one step and save its checkpoint.

        Raises:
            BadRequestError: The input is wrong; the message names the field. Nothing changed.
            ConflictError: The step exists, or does not follow the latest checkpoint.
            ModelNotAvailableError: The model cannot be loaded, or the checkpoint belongs to another one.
            StorageFailedError: The checkpoint could not be read or written.
            TrainerFailedError: The gradient was not finite three times in a row.
        """
        latest = self._store.latest_step()
        if step.step != latest + 1:
            raise ConflictError(
                f"Step {step.step} cannot be trained: the latest checkpoint in {self._store.directory} is that of step {latest}.",
                param="step",
            )
        learner = self._load(latest, step.options.trainer if isinstance(step, StepInput) else TrainerKind.ART)
        self._learner = None  # until the step is whole: after a failure, weights come from the checkpoint again
        random_state = torch.get_rng_state()
        try:
            output = self._train(step, learner, on_progress)
        except BadRequestError:
            if not learner.changed:  # a refusal before the first update costs no loading
                torch.set_rng_state(random_state)
                self._learner = learner
            raise
        learner.changed = False
        self._learner = learner
        return output

    def rest(self) -> None:
        """Give the device's memory back until the next step. On a CPU there is nothing to give."""
        if self._learner is not None:
            self._learner.leave_device()
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()

    def release(self) -> None:
        """Forget the model and give its memory back; the next step loads it from the latest checkpoint."""
        self._learner = None
        gc.collect()
        _return_free_memory()

    def _load(self, step: int, kind: TrainerKind) -> Learner:
        """Return the model with the weights of ``step``."""
        if kind is not self._kind:
            if kind is TrainerKind.TRL:
                from art_backend.training.trl import check_available  # imports transformers' trainer

                check_available(self._setup)
            self.release()
            self._kind = kind
        if self._learner is not None and self._learner.state.step == step:
            self._learner.return_to_device()
            return self._learner
        directory = self._store.verify(step) if step else None
        self._learner = None
        attention = "dense" if kind is TrainerKind.TRL else self._attention
        return Learner.load(self._setup, directory, attention=attention)

    def _train(self, step: AnyInput, learner: Learner, on_progress: Progress) -> StepOutput:
        """Rows → packs → gradients and updates → canaries → checkpoint."""
        started = time.monotonic()
        plan = self._plan_examples(step, learner) if isinstance(step, SftInput) else self._plan_groups(step, learner)
        probe = CanaryProbe.start(plan.rows, learner.policy) if plan.rows else None
        if self._kind is TrainerKind.TRL and isinstance(step, StepInput):
            from art_backend.training.trl import update_by_trl

            meter, measured = update_by_trl(plan, step.options, learner, self._setup, on_progress)
        else:
            meter = self._update(step, plan, learner, on_progress)
            measured = meter.metrics()
        trained = meter.updates > 0
        canaries = probe.finish(learner.policy) if probe and trained else []
        saving = time.monotonic()
        checkpoint = learner.save(self._store, step.step, changed=trained)
        metrics = plan.metrics | measured
        metrics |= {"time/step_train_s": saving - started, "time/step_save_s": time.monotonic() - saving}
        return StepOutput(
            step=step.step,
            trained=trained,
            reason="The gradient was not finite, so the update was skipped." if probe and not trained else plan.reason,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            warnings=[
                *plan.warnings,
                *_warn_of_long_rows(plan.rows, step.options),
                *_warn_of_gap(measured),
                *_warn_of_skips(meter),
            ],
            checkpoint=checkpoint,
            canaries=canaries,
        )

    def _plan_examples(self, step: SftInput, learner: Learner) -> StepPlan:
        return plan_examples(step, vocabulary=learner.policy.vocabulary, max_length=self._setup.max_sequence_length)

    def _plan_groups(self, step: StepInput, learner: Learner) -> StepPlan:
        """Check the groups, and deal their trajectories to updates. Sets the learner up as the options ask."""
        options, policy, max_length = step.options, learner.policy, self._setup.max_sequence_length
        rate = learning_rate(options, step.step)
        learner.choose_optimizer(options.optimizer)
        policy.set_checkpointing(options.gradient_checkpointing)
        batch = build_batch(
            step,
            vocabulary=policy.vocabulary,
            max_length=max_length,
            advantage=None if options.advantage is None else load_advantage(options.advantage, self._setup.user_code),
            structures=StructureReplay(self._setup.base_path, policy.vocabulary),
        )
        reduction = PRESETS[options.algorithm].reduction
        parts = _deal(batch.members, options.minibatches, seed=step.step)
        updates = [Update(weigh(part, reduction, max_length), rate) for part in parts]
        return StepPlan(updates, batch.metrics, batch.reason, batch.warnings)

    def _update(self, step: AnyInput, plan: StepPlan, learner: Learner, on_progress: Progress) -> UpdateMeter:
        """Take the updates of a plan, in every epoch; return what they measured."""
        policy, options = learner.policy, step.options
        budget = options.micro_batch_tokens or _default_budget(plan.rows, policy.device)
        parts = [pack_rows(update.rows, budget, share=policy.shares_prefixes) for update in plan.updates]
        tokens = sum(pack.size for packs in parts for pack in packs)
        work: list[list[Callable[[], None]]]
        """For each update, what adds the gradient of each pack."""
        if isinstance(step, SftInput):
            epochs, meter = 1, SftMeter(tokens, on_progress)
            work = [[partial(add_sft_gradient, policy, pack, meter) for pack in packs] for packs in parts]
        else:
            chosen = step.options
            epochs, meter = chosen.epochs, StepMeter(tokens * chosen.epochs, on_progress)
            own = None if chosen.loss is None else load_loss(chosen.loss, self._setup.user_code)
            prepared = prepare(parts, policy, chosen, self._reference(chosen))
            work = [[partial(add_gradient, policy, item, chosen, own, meter) for item in part] for part in prepared]
        for part, update in list(zip(work, plan.updates, strict=True)) * epochs:
            policy.gradient.zero_()
            meter.start_update(update.learning_rate)
            for add in part:
                add()
            meter.end_update(learner.step(options, update.learning_rate))
        return meter

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


def _deal(members: Sequence[Member], minibatches: int, seed: int) -> list[list[Member]]:
    """Deal trajectories, shuffled, into at most ``minibatches`` parts of nearly equal size."""
    if minibatches == 1 or len(members) < 2:
        return [list(members)] if members else []
    order = np.random.default_rng(seed).permutation(len(members))
    return [[members[i] for i in part] for part in np.array_split(order, min(minibatches, len(members)))]


def _default_budget(rows: Sequence[TrainingRow], device: torch.device) -> int:
    """Packed tokens per forward pass: room for two of the longest row, so that shared prefixes are not computed too often."""
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


def _warn_of_skips(meter: UpdateMeter) -> list[str]:
    if not meter.skipped:
        return []
    return [f"{meter.skipped} of {meter.skipped + meter.updates} updates were skipped: the gradient was not finite."]


def _return_free_memory() -> None:
    """Hand freed memory back to the system, where the C library can (glibc)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none: it returns free memory by itself
        if trim is not None:
            trim(0)
