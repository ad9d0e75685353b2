"""The model loop: what is computed, under whose weights, and what happens when it fails."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from art_backend.engines.torch_engine.sampler import NonFiniteLogitsError

PROMPT = list(range(3, 53))


def test_metrics_count_shared_prompts_once(make_engine):
    driver = make_engine(token_budget=512)
    outputs = [driver.submit(PROMPT, max_tokens=3)[1] for _ in range(8)]
    driver.run()
    assert len({tuple(delta.token_ids) for (delta,) in outputs}) == 1
    assert driver.engine.counters.prompt_tokens == 8 * 50
    assert driver.computed == 48 + 8 * 2
    assert driver.engine.counters.generated_tokens == 24
    assert driver.engine.counters.finished == 8
    assert driver.engine.cache.num_held == 0


def test_cached_prefix_belongs_to_its_adapter(make_engine, tiny_adapter):
    driver = make_engine()
    base = driver.generate(PROMPT)
    driver.load("m@1", tiny_adapter("llama", 1))
    first = driver.generate(PROMPT, model="m@1")
    assert first.token_ids != base.token_ids
    before = driver.computed
    assert driver.generate(PROMPT, model="m@1").logprobs == pytest.approx(first.logprobs, abs=1e-4)
    assert driver.computed == before + 1
    driver.do(driver.engine.unload_adapter("m@1"))
    driver.load("m@1", tiny_adapter("llama", 2))  # the same name, other weights
    before = driver.computed
    assert driver.generate(PROMPT, model="m@1").token_ids != first.token_ids
    assert driver.computed == before + 50


def test_memory_of_an_unloaded_adapter_is_freed(make_engine, tiny_adapter):
    driver = make_engine()
    driver.load("m@1", tiny_adapter("llama", 1))
    _, outputs = driver.submit(PROMPT, model="m@1", max_tokens=4)
    driver.obey()
    driver.engine.step()
    driver.do(driver.engine.unload_adapter("m@1"))
    assert not outputs
    driver.run()
    assert len(outputs[0].token_ids) == 4
    assert driver.engine.cache.num_available == driver.engine.cache.num_blocks
    assert driver.engine.cache.num_cached == 0


def test_too_little_room_preempts_and_still_answers_right(make_engine):
    roomy = make_engine()
    tight = make_engine(blocks=14, max_model_len=200)
    prompts = [[i, *range(10, 40)] for i in range(6)]
    expected = [roomy.generate(prompt, max_tokens=60).token_ids for prompt in prompts]
    outputs = [tight.submit(prompt, max_tokens=60)[1] for prompt in prompts]
    tight.run()
    assert [delta.token_ids for (delta,) in outputs] == expected
    assert tight.engine.scheduler.preemptions > 0


def test_sleep_gives_memory_back_and_forgets_what_nobody_holds(make_engine):
    driver = make_engine()
    before = driver.generate(PROMPT)
    driver.do(driver.engine.pause("keep"))
    driver.do(driver.engine.sleep())
    assert driver.engine.cache.num_cached == 0
    driver.do(driver.engine.wake_up({"weights", "kv_cache"}))
    driver.do(driver.engine.resume())
    assert driver.generate(PROMPT).logprobs == pytest.approx(before.logprobs, abs=1e-4)


def test_bf16_agrees_with_the_same_weights_in_plain_transformers(make_engine, tiny_model):
    driver = make_engine(dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.bfloat16).eval()
    completion = driver.generate(PROMPT, max_tokens=40, temperature=1.0, seed=1)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + completion.token_ids])).logits[0, 49:-1].float()
    expected = logits.log_softmax(-1)[range(40), completion.token_ids]
    assert (expected - torch.tensor(completion.logprobs)).abs().mean() < 0.05


def test_broken_weights_fail_the_request_and_not_the_engine(make_engine, tiny_adapter):
    driver = make_engine()
    driver.load("broken", tiny_adapter("llama", 1))
    for a, _ in driver.engine.adapters["broken"].weights.values():
        a.fill_(float("nan"))
    _, outputs = driver.submit(PROMPT, model="broken")
    _, healthy = driver.submit(PROMPT)
    driver.run()
    assert isinstance(outputs[0], NonFiniteLogitsError)
    assert len(healthy[0].token_ids) == 8
    assert driver.engine.cache.num_held == 0


def test_a_crash_of_the_model_loop_ends_the_process(tiny_model):
    script = f"""
import time
from pathlib import Path
import torch
from art_backend.engines.torch_engine.engine import Engine
from art_backend.engines.torch_engine.model_thread import ModelThread
from art_backend.engines.torch_engine.runner import ModelRunner
runner = ModelRunner(Path({str(tiny_model("llama"))!r}), dtype=torch.float32, device=torch.device("cpu"),
                     kv_cache_bytes=2**24, max_model_len=64)
engine = Engine(runner, served_name="base", max_num_seqs=2, token_budget=8, max_loras=1, max_lora_rank=8,
                publish=lambda outputs: None)
engine.start(ModelThread())
engine.call(lambda: 1 / 0)
time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 70
    assert "ZeroDivisionError" in ended.stderr
