"""The engine against plain transformers and PEFT, in fp32; and against itself, to the last bit."""

import random

import pytest
import torch
from peft import PeftModel
from tests.support.rows import equal_rows
from transformers import AutoModelForCausalLM

from art_backend.planning.architecture import PROVEN

TOLERANCE = 5e-5


def prompts(count, seed=0, longest=100):
    draw = random.Random(seed)
    return [[draw.randrange(259) for _ in range(draw.randint(1, longest))] for _ in range(count)]


def plain(path):
    """The model as transformers computes it, by the attention that its authors wrote: SDPA would leave out a cap."""
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def reference(model, prompt, token_ids):
    """Log-probabilities of ``token_ids`` after ``prompt``, and what greedy decoding would have chosen, by one plain forward pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1)
    return logprobs[range(len(token_ids)), token_ids].tolist(), logits.argmax(-1).tolist()


def check(model, prompt, completion):
    logprobs, greedy = reference(model, prompt, completion.token_ids)
    assert completion.token_ids == greedy
    assert completion.logprobs == pytest.approx(logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("family", [*PROVEN, "windowed"])
def test_batch_of_any_lengths_equals_plain_transformers(make_engine, tiny_model, family):
    driver = make_engine(family)
    model = plain(tiny_model(family))
    batch = prompts(12)
    outputs = [driver.submit(prompt, max_tokens=20)[1] for prompt in batch]
    driver.run()
    for prompt, (delta,) in zip(batch, outputs, strict=True):
        check(model, prompt, delta)


@pytest.mark.parametrize("family", PROVEN)
def test_adapters_side_by_side_equal_peft(make_engine, tiny_model, tiny_adapter, family):
    driver = make_engine(family)
    query, value, up = ("qkv_proj", "qkv_proj", "gate_up_proj") if family == "phi3" else ("q_proj", "v_proj", "up_proj")
    paths = {
        "m@1": tiny_adapter(family, 1),
        "m@2": tiny_adapter(family, 2, target_modules=[query, value, "down_proj"], use_rslora=True),
        "m@3": tiny_adapter(family, 3, rank_pattern={query: 2}, alpha_pattern={f"layers.1.mlp.{up}": 3}),
    }
    for name, path in paths.items():
        driver.load(name, path)
    batch = prompts(8, seed=1, longest=40)
    names = ["base", *paths] * 2
    outputs = [driver.submit(p, max_tokens=12, model=n)[1] for p, n in zip(batch, names, strict=True)]
    driver.run()
    answers = set()
    for prompt, name, (delta,) in zip(batch, names, outputs, strict=True):
        model = plain(tiny_model(family))
        if name != "base":
            model = PeftModel.from_pretrained(model, paths[name])
        check(model.eval(), prompt, delta)
        answers.add(tuple(driver.generate(batch[0], model=name).token_ids))
    assert len(answers) == 4  # every adapter changes what is sampled


def test_long_prompts_are_cut_into_chunks(make_engine, tiny_model):
    driver = make_engine(token_budget=7)
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama")).eval()
    batch = prompts(5, seed=2)
    outputs = [driver.submit(prompt, max_tokens=10)[1] for prompt in batch]
    driver.run()
    for prompt, (delta,) in zip(batch, outputs, strict=True):
        check(model, prompt, delta)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_bit_depends_on_what_runs_beside(make_engine, tiny_adapter, dtype):
    driver = make_engine("wide", dtype=dtype, blocks=400)
    names = ["base", "m@1", "m@2"]
    for seed, name in enumerate(names[1:]):
        driver.load(name, tiny_adapter("wide", seed))
    batch = [(prompt, names[i % 3], i) for i, prompt in enumerate(prompts(24, seed=3, longest=60))]

    def run(requests):
        outputs = [driver.submit(p, model=n, max_tokens=16, temperature=1.0, seed=s)[1] for p, n, s in requests]
        driver.run()
        driver.engine.cache.forget()
        return [delta.token_ids for (delta,) in outputs], [delta.logprobs for (delta,) in outputs]

    def expected(logprobs):
        return logprobs if equal_rows(dtype) else [pytest.approx(row, abs=1e-5) for row in logprobs]

    ids, logprobs = run(batch)
    for i, request in enumerate(batch):
        assert run([request]) == (ids[i : i + 1], expected(logprobs[i : i + 1]))
    for i in range(3):  # one adapter at a time
        assert run(batch[i::3]) == (ids[i::3], expected(logprobs[i::3]))
