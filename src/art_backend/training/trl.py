"""``trainer="trl"``: the update by TRL's ``GRPOTrainer``, fed with captured rows through its public extension points.

Everything around the update stays ART's: checks, advantages, overlong policy, canaries, checkpoint, resuming. TRL gets

- the rows, from ``rollout_func``: prompt and completion ids, and ``env_mask`` (1 = sampled);
- our advantages, as the values of its reward function. TRL takes the mean of a group off them: all rows are one group, and
  where their mean is not zero, a row without a trained token makes it so. They are multiplied by what our reduction and
  TRL's give a row's tokens, so that the loss is the algorithm's, whatever the preset;
- the correction for the gap to the engine, in the place of the log-probabilities that ``rollout_func`` returns, from where our
  ``compute_loss`` takes it. TRL's own correction works with its own vLLM only, and it reads them for nothing else;
- our optimiser, through ``optimizers``, so that either trainer goes on from the other's checkpoints.

TRL computes every row by itself (no shared prefixes) and rounds logits to the compute type. The correction takes one more pass.
"""

import tempfile
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, TrainerCallback

from art.wire import Algorithm, TrainOptions
from art_backend.errors import BadRequestError
from art_backend.training.algorithms.losses import MIN_LOGPROB, clipped_importance, importance_weights
from art_backend.training.algorithms.presets import PRESETS, clip_ranges
from art_backend.training.learner import Learner
from art_backend.training.metrics import Progress, StepMeter
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.batch import StepPlan
from art_backend.training.rows.packing import Floats, TrainingRow, pack_rows
from art_backend.training.rows.targets import read_targets
from art_backend.training.types import ModelSetup

_UNSUPPORTED: dict[str, Any] = {
    "loss": None,
    "kl_coef": 0.0,
    "entropy_coef": 0.0,
    "minibatches": 1,
    "micro_batch_tokens": None,
}
"""Options that TRL's trainer does not support, with their neutral values."""


def check_available(setup: ModelSetup) -> None:
    """Raises BadRequestError: TRL is not installed, or all weights of the model are trained."""
    if find_spec("trl") is None:
        raise BadRequestError(
            "trainer='trl' needs TRL, which is not installed here. Install it: pip install 'art-trainer[trl]'",
            param="options.trainer",
        )
    if setup.full_finetune:
        raise BadRequestError(
            "trainer='trl' trains adapters; a fully fine-tuned model is trained with trainer='art'.",
            param="options.trainer",
        )


def update_by_trl(
    plan: StepPlan, options: TrainOptions, learner: Learner, setup: ModelSetup, on_progress: Progress
) -> tuple[StepMeter, dict[str, float]]:
    """Take the updates of a step; return what they measured.

    Raises:
        BadRequestError: The options or the rows ask for something that TRL cannot do.
    """
    _check_options(options)
    rows, meter = plan.rows, StepMeter()
    if not rows:
        return meter, meter.metrics()
    _check_rows(rows)
    (update,), policy = plan.updates, learner.policy
    assert isinstance(policy, AdapterPolicy)
    total = sum(row.token_ids.size for row in rows) * options.epochs

    def apply() -> None:
        meter.end_update(learner.step(options, update.learning_rate))
        policy.gradient.zero_()

    policy.gradient.zero_()
    learner.changed = True  # TRL may leave its marks, whatever it raises
    optimizer = _OurOptimizer(list(policy.model.parameters()), apply)
    with tempfile.TemporaryDirectory(prefix="art-trl-") as directory:
        measured = _run_trl(rows, options, policy, optimizer, directory, setup, lambda done: on_progress(done, total))
    policy.model.eval()
    tokens = float(sum(int(row.trained.sum()) for row in rows) * options.epochs)
    return meter, meter.metrics() | {
        "data/step_trainer_tokens": tokens if meter.updates else 0.0,
        "data/step_row_tokens": float(total),
        "data/step_packed_tokens": float(total),
        "data/packing_ratio": 1.0,
        "loss/learning_rate": update.learning_rate,
        **measured,
    }


def _run_trl(
    rows: list[TrainingRow],
    options: TrainOptions,
    policy: AdapterPolicy,
    optimizer: torch.optim.Optimizer,
    directory: str,
    setup: ModelSetup,
    on_tokens: Any,
) -> dict[str, float]:
    """Take the updates; return what TRL measured, as means over them."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    loss = _loss_arguments(options)
    cap = options.importance_cap
    given = [row.logprobs for row in rows] if cap is None else [_log_correction(row, policy, cap) for row in rows]
    fed = feed(rows, given, by_row=loss["loss_type"] == "grpo")
    count = len(fed["prompt_ids"])

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return fed

    def value(value: list[float | None], **_: Any) -> list[float | None]:
        return value

    class Corrected(GRPOTrainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
            given = inputs["sampling_per_token_logps"]
            if cap is None:
                change = {"old_per_token_logps": given}  # the ratio is to what the engine sampled from
            else:
                change = {"advantages": inputs["advantages"][:, None] * given.exp()}  # [B, T], which TRL takes, too
            return super().compute_loss(model, inputs | change, *arguments, **named)

    trainer = Corrected(
        model=policy.model,
        reward_funcs=value,
        args=GRPOConfig(
            output_dir=directory,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=count,
            num_generations=count,
            num_iterations=options.epochs,
            max_steps=options.epochs,
            scale_rewards="none",
            temperature=rows[0].temperature,
            beta=0.0,
            max_grad_norm=0.0,  # our optimiser clips
            lr_scheduler_type="constant",
            gradient_checkpointing=options.gradient_checkpointing,
            use_cpu=policy.device.type == "cpu",
            bf16=False,  # the model already computes in its type
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            seed=setup.lora.seed,
            **loss,
        ),
        train_dataset=Dataset.from_list([{"prompt": "rows"}]),
        processing_class=AutoTokenizer.from_pretrained(setup.base_path),
        rollout_func=rollout,
        callbacks=[_Ticker(sum(row.token_ids.size for row in rows) // count, on_tokens)],
        optimizers=(optimizer, None),
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]

    def mean(name: str) -> float:
        found = [entry[name] for entry in logs if name in entry]
        return float(np.mean(found)) if found else 0.0

    shown = count / len(rows)  # TRL's means over rows count the one without a trained token
    clipped_high = "cispo_clip_ratio" if loss["loss_type"] == "cispo" else "clip_ratio/high_mean"
    return {
        "loss/policy": mean("loss"),
        "loss/entropy": mean("entropy") * shown,
        "loss/clip_fraction_low": mean("clip_ratio/low_mean") * shown,
        "loss/clip_fraction_high": mean(clipped_high) * shown,
    }


def feed(rows: list[TrainingRow], given: list[Floats], *, by_row: bool) -> dict[str, list[Any]]:
    """The return value of ``rollout_func`` for weighed rows; ``value`` goes to the reward function.

    Args:
        given: For each row, what TRL takes for its log-probabilities, as long as the row. Only trained tokens count.
        by_row: Whether TRL's loss is a mean over each row's tokens and then over rows; else it is over all trained tokens.
    """
    trained = [int(row.trained.sum()) for row in rows]

    def values(count: int) -> list[float]:
        theirs = [1 / (n * count) if by_row else 1 / sum(trained) for n in trained]
        return [row.advantage * row.weight / weight for row, weight in zip(rows, theirs, strict=True)]

    found = values(len(rows))
    starts = [int(row.trained.argmax()) for row in rows]
    stops = [int(np.flatnonzero(row.trained)[-1]) + 1 for row in rows]
    cut = list(zip(rows, starts, stops, strict=True))
    known = [np.where(row.trained, values, 0.0) for row, values in zip(rows, given, strict=True)]
    fed: dict[str, list[Any]] = {
        "prompt_ids": [row.token_ids[:start].tolist() for row, start, _ in cut],
        "completion_ids": [row.token_ids[start:stop].tolist() for row, start, stop in cut],
        "logprobs": [values[start:stop].tolist() for values, start, stop in zip(known, starts, stops, strict=True)],
        "env_mask": [row.trained[start:stop].astype(int).tolist() for row, start, stop in cut],
        "value": found,
    }
    if len(rows) == 1 or abs(sum(found)) > 1e-9 * sum(map(abs, found)):
        found = values(len(rows) + 1)
        filler = {"prompt_ids": [int(rows[0].token_ids[0])], "completion_ids": [int(rows[0].token_ids[0])]}
        filler |= {"logprobs": [0.0], "env_mask": [0]}
        fed = {name: [*fed[name], extra] for name, extra in filler.items()} | {"value": [*found, -sum(found)]}
    return fed


@torch.no_grad()
def _log_correction(row: TrainingRow, policy: AdapterPolicy, cap: float) -> Floats:
    """Logarithm of the truncated importance weight of every trained token, before the first update; as long as the row."""
    (pack,) = pack_rows([row], row.token_ids.size, share=False)
    targets = read_targets(pack, policy.device)
    start = targets.logprobs(policy.forward(pack), policy.head).logprobs.clamp(min=MIN_LOGPROB)
    weights = importance_weights(start, targets.engine_logprobs.clamp(min=MIN_LOGPROB), cap)
    found = np.zeros(row.token_ids.size)
    found[row.trained] = weights.log().cpu().numpy()
    return found


class _OurOptimizer(torch.optim.Optimizer):
    """Hands TRL's call of ``step`` on: gradients are already summed in the policy, where hooks put them."""

    def __init__(self, parameters: list[torch.nn.Parameter], apply: Any) -> None:
        super().__init__([p for p in parameters if p.requires_grad], {"lr": 0.0})
        self._apply = apply

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._apply()


class _Ticker(TrainerCallback):
    """Tells of progress after every row."""

    def __init__(self, tokens: int, on_tokens: Any) -> None:
        self._tokens, self._on_tokens, self._done = tokens, on_tokens, 0

    def _tick(self) -> None:
        self._done += self._tokens
        self._on_tokens(self._done)

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._tick()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._tick()


def _loss_arguments(options: TrainOptions) -> dict[str, Any]:
    """The preset's ratio and clip, as ``GRPOConfig`` names them."""
    preset = PRESETS[options.algorithm]
    low, high = clip_ranges(options)
    if preset.surrogate is clipped_importance:
        return {"loss_type": "cispo", "epsilon_high": 1 + high}
    if preset.level == "sequence":
        return {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": low, "epsilon_high": high}
    return {"loss_type": "dapo", "epsilon": low, "epsilon_high": high, "delta": options.negative_advantage_cap}


def _check_options(options: TrainOptions) -> None:
    given = options.model_dump()
    asked = [name for name, nothing in _UNSUPPORTED.items() if given[name] != nothing]
    capped_otherwise = PRESETS[options.algorithm].surrogate is clipped_importance or options.algorithm is Algorithm.GSPO
    if options.negative_advantage_cap is not None and (capped_otherwise or options.importance_cap is not None):
        asked.append("negative_advantage_cap" if capped_otherwise else "negative_advantage_cap beside importance_cap")
    if options.algorithm is Algorithm.CISPO and options.epsilon is not None:
        asked.append("epsilon")
    if asked:
        raise BadRequestError(
            f"trainer='trl' with algorithm={options.algorithm.value!r} does not support {', '.join(asked)}. Leave that out, or choose "
            "trainer='art'.",
            param=f"options.{asked[0].split()[0]}",
        )


def _check_rows(rows: list[TrainingRow]) -> None:
    temperatures = sorted({row.temperature for row in rows})
    if len(temperatures) > 1:
        problem = f"trains rows of one temperature; these were sampled at {temperatures}. Choose trainer='art'."
    elif any(row.masks is not None for row in rows):
        problem = (
            "cannot train structured output (response_format, tool_choice, strict tools): TRL's log-probabilities are "
            "those of the whole vocabulary. Leave it out of the rollouts, or choose trainer='art'."
        )
    elif any(np.isnan(row.logprobs[row.trained]).any() for row in rows):
        problem = (
            "needs the log-probabilities that tokens were sampled with; train what was not captured with trainer='art'."
        )
    else:
        return
    raise BadRequestError(f"trainer='trl' {problem}", param="options.trainer")
