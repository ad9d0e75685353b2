"""A reward model in memory: tokenised, trained, scored, saved."""

import json
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from art.wire.rewards import Conversation, PreferencePair, RewardReport, TrainReward
from art_backend.errors import BadRequestError, NotFoundError
from art_backend.models.base import find_base_model
from art_backend.models.compute import choose_device
from art_backend.rewards.pairs import split_examples, split_pairs
from art_backend.rewards.report import build_report, fit_temperature

_RECORD = "reward.json"
_MIN_HELD_OUT = 2


class LoadedReward:
    """Weights, tokenizer and report of a saved reward model.

    Raises:
        NotFoundError: ``path`` holds no reward model.
    """

    def __init__(self, path: Path) -> None:
        record = path / _RECORD
        if not record.is_file():
            raise NotFoundError(f"{path} holds no reward model: {_RECORD} is missing.", param="path")
        stored = json.loads(record.read_text())
        self.path = path
        self.max_length: int = stored["max_length"]
        self.report = RewardReport.model_validate(stored["report"])
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self._model: Any = AutoModelForSequenceClassification.from_pretrained(path).to(choose_device()).eval()

    def score(self, conversations: Sequence[Conversation], batch_tokens: int) -> list[float]:
        """Calibrated scores, in order.

        Raises:
            BadRequestError: A conversation is longer than what the model was trained on; the message says which.
        """
        rows = [tokenise(self._tokenizer, conversation) for conversation in conversations]
        for i, row in enumerate(rows):
            if len(row) > self.max_length:
                raise BadRequestError(
                    f"Conversation {i} has {len(row)} tokens; this reward model takes up to {self.max_length}. Train it with a "
                    "larger max_length, or shorten the conversation.",
                    param=f"conversations.{i}",
                )
        raw = score_rows(self._model, rows, self._tokenizer.pad_token_id, batch_tokens)
        return [score / self.report.temperature for score in raw]


def tokenise(tokenizer: Any, conversation: Conversation) -> list[int]:
    """Ids of a whole conversation, by the model's chat template."""
    return list(tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=True)["input_ids"])


@torch.inference_mode()
def score_rows(model: Any, rows: Sequence[list[int]], pad: int, batch_tokens: int) -> list[float]:
    """Raw scores, in order. Rows of similar length share a batch, so that little is padding."""
    scores = [0.0] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    while order:
        longest = len(rows[order[0]])
        size = max(1, batch_tokens // longest)
        batch, order = order[:size], order[size:]
        ids_BT = torch.full((len(batch), longest), pad)
        mask_BT = torch.zeros_like(ids_BT)
        for b, i in enumerate(batch):
            ids_BT[b, : len(rows[i])] = torch.tensor(rows[i])
            mask_BT[b, : len(rows[i])] = 1
        logits_B1 = model(input_ids=ids_BT.to(model.device), attention_mask=mask_BT.to(model.device)).logits
        for i, score in zip(batch, logits_B1.squeeze(-1).float().tolist(), strict=True):
            scores[i] = score
    return scores


def train(spec: TrainReward) -> LoadedReward:
    """Train, calibrate, report, and save as one directory that appears as a whole.

    Raises:
        BadRequestError: The output exists, or there are too few pairs; the message says how many there are.
    """
    output = Path(spec.output).absolute()
    if output.exists():
        raise BadRequestError(f"{output} already exists. Choose a new directory.", param="output")
    base = find_base_model(spec.base_model)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    parts, overlong = _tokenised_parts(tokenizer, spec)
    training, calibration, held_out = parts
    if not training or min(len(calibration), len(held_out)) < _MIN_HELD_OUT:
        raise BadRequestError(
            f"Too few comparisons: {len(training)} to train on, {len(calibration)} to calibrate with, {len(held_out)} to report "
            f"on ({overlong} were longer than max_length). Give more tasks, or a larger held_out.",
            param="pairs",
        )
    torch.manual_seed(spec.seed)
    model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    model = _fit(model, tokenizer, training, spec)
    budget = max(spec.max_length, 16384)
    temperature = fit_temperature(_margins(model, calibration, tokenizer.pad_token_id, budget))
    counts = {"trained_pairs": len(training), "calibration_pairs": len(calibration), "overlong_pairs": overlong}
    report = build_report(_margins(model, held_out, tokenizer.pad_token_id, budget), temperature, counts)
    partial = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        record = {"max_length": spec.max_length, "base_model": spec.base_model, "report": report.model_dump()}
        (partial / _RECORD).write_text(json.dumps(record, indent=2))
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return LoadedReward(output)


_Pair = tuple[list[int], list[int]]
"""Ids of the better conversation, and of the worse."""


def _tokenised_parts(tokenizer: Any, spec: TrainReward) -> tuple[list[list[_Pair]], int]:
    from_pairs = split_pairs(spec.pairs, spec.held_out, spec.seed) if spec.pairs else ([], [], [])
    from_scores = split_examples(spec.examples, spec.held_out, spec.seed) if spec.examples else ([], [], [])
    parts: list[list[_Pair]] = []
    overlong = 0
    for one, other in zip(from_pairs, from_scores, strict=True):
        rows = [_tokenised(tokenizer, pair) for pair in [*one, *other]]
        kept = [row for row in rows if max(map(len, row)) <= spec.max_length]
        overlong += len(rows) - len(kept)
        parts.append(kept)
    return parts, overlong


def _tokenised(tokenizer: Any, pair: PreferencePair) -> _Pair:
    return tokenise(tokenizer, pair.chosen), tokenise(tokenizer, pair.rejected)


def _margins(model: Any, pairs: Sequence[_Pair], pad: int, batch_tokens: int) -> list[float]:
    scores = score_rows(model, [row for pair in pairs for row in pair], pad, batch_tokens)
    return [better - worse for better, worse in zip(scores[::2], scores[1::2], strict=True)]


def _fit(model: Any, tokenizer: Any, pairs: Sequence[_Pair], spec: TrainReward) -> Any:
    from datasets import Dataset
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    on_gpu = choose_device().type == "cuda"
    columns = {"chosen_ids": [better for better, _ in pairs], "rejected_ids": [worse for _, worse in pairs]}
    peft_config: Any = None
    if spec.lora_rank is not None:
        from peft import LoraConfig, TaskType

        peft_config = LoraConfig(
            task_type=TaskType.SEQ_CLS, r=spec.lora_rank, lora_alpha=2 * spec.lora_rank, target_modules="all-linear"
        )
    with tempfile.TemporaryDirectory(prefix="art-reward-") as scratch:
        arguments = RewardConfig(
            output_dir=scratch,
            learning_rate=spec.learning_rate,
            num_train_epochs=spec.epochs,
            per_device_train_batch_size=spec.batch_size,
            max_length=None,  # overlong pairs were counted and left out before
            warmup_steps=0.1,
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=on_gpu,
            center_rewards_coefficient=0.01,  # keeps scores around zero (Eisenstein et al. 2023)
            save_strategy="no",
            report_to=[],
            logging_steps=10,
            seed=spec.seed,
        )
        trainer = RewardTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        trainer.train()
        fitted: Any = trainer.model
    if spec.lora_rank is not None:
        fitted = cast(Any, fitted).merge_and_unload()
    return fitted.eval()
