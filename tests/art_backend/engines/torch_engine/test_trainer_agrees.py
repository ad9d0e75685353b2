"""The log-probability of what the engine decoded, token by token, is the trainer's over a packed tree."""

import random

import pytest
import torch
from tests.support.decoded import random_policy, trainer_logprobs

from art_backend.planning.architecture import PROVEN

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


@pytest.mark.parametrize(
    ("family", "precision"),
    [*((family, "float32") for family in (*PROVEN, "windowed")), ("llama", "bfloat16"), ("wide", "bfloat16")],
)
def test_prefill_of_the_trainer_is_decode_of_the_engine(make_engine, tiny_model, tmp_path, family, precision):
    policy = random_policy(tiny_model(family), precision)
    policy.save(tmp_path)
    driver = make_engine(family, dtype=getattr(torch, precision), blocks=400)
    driver.load("m@1", tmp_path)
    decoded = sample(driver)
    for ours, (_, sampled, theirs) in zip(trainer_logprobs(policy, decoded, TEMPERATURE), decoded, strict=True):
        assert len(ours) == sampled
        assert ours == pytest.approx(theirs, abs=1e-4)
