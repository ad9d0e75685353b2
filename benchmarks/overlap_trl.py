"""TRL's own loop in the environment of ``benchmarks.overlap``.

``GRPOTrainer`` asks its ``rollout_func`` for the rollouts of a whole step at once, and generates by the model that it trains: so the
members of a batch take their turns together, and each turn lasts until its slowest environment is done. Its other way to an
environment, ``environment_factory``, needs a model that calls tools, and takes turns together as well.
"""

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from art_backend.models.compute import choose_device, choose_dtype
from benchmarks.overlap_environment import ANSWER, LEARNING_RATE, MAX_TOKENS, TURNS, latency, letters, prompt, reward


class Rollouts:
    """Plays batches of rollouts: a ``rollout_func``."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, latency_scale: float) -> None:
        self._tokenizer, self._seed, self._latency_scale = tokenizer, seed, latency_scale
        self.rewards: list[float] = []
        """Mean of each batch."""

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        scenarios = [int(re.findall(r"\d+", text)[0]) for text in prompts]
        counts: Counter[int] = Counter()
        members: list[int] = []
        for scenario in scenarios:
            members.append(counts[scenario])
            counts[scenario] += 1
        opening = [self._render([{"role": "user", "content": prompt(scenario)}]) for scenario in scenarios]
        ids = [list(tokens) for tokens in opening]
        logprobs: list[list[float]] = [[] for _ in prompts]
        mask: list[list[int]] = [[] for _ in prompts]
        counted = [0] * len(prompts)
        reply = self._reply()
        for turn in range(TURNS):
            for i, (sampled, chosen) in enumerate(self._generate(trainer, ids)):
                counted[i] += letters(str(self._tokenizer.decode(sampled, skip_special_tokens=True)))
                ids[i] += sampled
                logprobs[i] += chosen
                mask[i] += [1] * len(sampled)
                if turn < TURNS - 1:
                    ids[i] += reply
                    logprobs[i] += [0.0] * len(reply)
                    mask[i] += [0] * len(reply)
            waits = [latency(self._seed, s, m, turn) for s, m in zip(scenarios, members, strict=True)]
            time.sleep(self._latency_scale * max(waits))
        outcome = [reward(count) for count in counted]
        self.rewards.append(sum(outcome) / len(outcome))
        completions = [tokens[len(start) :] for tokens, start in zip(ids, opening, strict=True)]
        return {
            "prompt_ids": opening, "completion_ids": completions, "logprobs": logprobs, "env_mask": mask,
            "outcome": outcome,
        }  # fmt: skip

    def _render(self, messages: list[dict[str, str]]) -> list[int]:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self._tokenizer(str(text), add_special_tokens=False)["input_ids"]  # pyright: ignore[reportReturnType]

    def _reply(self) -> list[int]:
        """What stands between two answers: the end of the first, the environment's words, the beginning of the next."""
        before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        head = str(self._tokenizer.apply_chat_template(before, tokenize=False))
        whole = [*before, {"role": "user", "content": ANSWER}]
        text = str(self._tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True))
        return self._tokenizer("\n" + text[len(head) :], add_special_tokens=False)["input_ids"]  # pyright: ignore[reportReturnType]

    @torch.no_grad()
    def _generate(self, trainer: GRPOTrainer, ids: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """The next answer to each, with the log-probabilities of its tokens."""
        model: Any = trainer.model
        end = self._tokenizer.eos_token_id
        width = max(map(len, ids))
        tokens_BT = torch.tensor([[end] * (width - len(one)) + one for one in ids], device=model.device)
        mask_BT = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in ids], device=model.device)
        output = model.generate(
            input_ids=tokens_BT, attention_mask=mask_BT, max_new_tokens=MAX_TOKENS, do_sample=True, temperature=1.0,
            top_k=0, top_p=1.0, eos_token_id=end, pad_token_id=end, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        new_BN = output.sequences[:, width:]
        chosen_BN = torch.stack(output.logits, 1).float().log_softmax(-1).gather(-1, new_BN[..., None])[..., 0]
        found: list[tuple[list[int], list[float]]] = []
        for row, chosen in zip(new_BN.tolist(), chosen_BN.tolist(), strict=True):
            length = row.index(end) + 1 if end in row else len(row)
            found.append((row[:length], chosen[:length]))
        return found


class Clock(TrainerCallback):
    """Seconds of each step, rollouts included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.monotonic()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._last = time.monotonic()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        now = time.monotonic()
        self.seconds.append(now - self._last)
        self._last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--latency-scale", type=float, required=True)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    dtype = choose_dtype("auto", choose_device())
    rollouts, clock = Rollouts(tokenizer, options.seed, options.latency_scale), Clock()
    with tempfile.TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype),
            reward_funcs=lambda outcome, **_: outcome,
            args=GRPOConfig(
                output_dir=directory,
                per_device_train_batch_size=options.groups * options.members,
                num_generations=options.members,
                max_steps=options.steps,
                max_completion_length=1024,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                loss_type="dapo",
                beta=0.0,
                gradient_checkpointing=False,
                use_cpu=not torch.cuda.is_available(),
                bf16=dtype == torch.bfloat16,
                seed=options.seed,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt(i)} for i in range(options.steps * options.groups)]),
            processing_class=tokenizer,
            rollout_func=rollouts,
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
            callbacks=[clock],
        )
        trainer.train()
    print(json.dumps({"seconds": clock.seconds, "rewards": rollouts.rewards}))


if __name__ == "__main__":
    main()
