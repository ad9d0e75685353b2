"""The log-probability of what the engine decoded, token by token, is the trainer's over a packed tree."""

import random

import numpy as np
import pytest
import torch

from art.wire import LoraSpec
from art_backend.training.adapter_policy import AdapterPolicy
from art_backend.training.packing import TrainingRow, pack_rows
from art_backend.training.targets import read_targets

TEMPERATURE = 0.8


def sample(driver, count=10):
    """Rows with a common stem, as (ids, number of sampled ones, their log-probabilities)."""
    draw = random.Random(0)
    stem = [draw.randrange(97) for _ in range(30)]
    prompts = [stem + [draw.randrange(97) for _ in range(draw.randint(1, 12))] for _ in range(count)]
    options = {"model": "m@1", "max_tokens": 16, "temperature": TEMPERATURE}
    outputs = [driver.submit(prompt, seed=i, **options)[1] for i, prompt in enumerate(prompts)]
    driver.run()
    return [(p + d.token_ids, len(d.token_ids), d.logprobs) for p, (d,) in zip(prompts, outputs, strict=True)]


def compute(policy, decoded):
    """The trainer's log-probabilities of the sampled tokens of each row, in order."""
    rows = []
    for ids, sampled, _ in decoded:
        trained = np.arange(len(ids)) >= len(ids) - sampled
        rows.append(TrainingRow(np.array(ids), trained, np.full(len(ids), -1.0), TEMPERATURE, 1.0, 1.0))
    found = [{} for _ in rows]
    for pack in pack_rows(rows, 200):
        targets = read_targets(pack, policy.device)
        with torch.no_grad():
            logprobs = targets.logprobs(policy.forward(pack), policy.head).logprobs.tolist()
        depths = pack.depths[targets.positions[targets.slots].numpy()].tolist()
        for row, depth, logprob in zip(targets.rows.tolist(), depths, logprobs, strict=True):
            found[row][depth] = logprob
    return [[row[depth] for depth in sorted(row)] for row in found]


@pytest.mark.parametrize(
    ("family", "precision"),
    [("llama", "float32"), ("qwen2", "float32"), ("qwen3", "float32"), ("llama", "bfloat16"), ("wide", "bfloat16")],
)
def test_prefill_of_the_trainer_is_decode_of_the_engine(make_engine, tiny_model, tmp_path, family, precision):
    policy = AdapterPolicy(tiny_model(family), LoraSpec(rank=4, alpha=8), precision=precision)
    torch.manual_seed(1)
    policy.weights.copy_(torch.randn_like(policy.weights) * 0.1)
    policy.publish_weights()
    policy.save(tmp_path)
    driver = make_engine(family, dtype=getattr(torch, precision), blocks=400)
    driver.load("m@1", tmp_path)
    decoded = sample(driver)
    for ours, (_, sampled, theirs) in zip(compute(policy, decoded), decoded, strict=True):
        assert len(ours) == sampled
        assert ours == pytest.approx(theirs, abs=1e-4)
