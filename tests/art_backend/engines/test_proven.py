"""What vLLM samples from every proven kind of model has the trainer's log-probabilities. (The embedded engine's part is
``torch_engine/test_trainer_agrees.py``, without processes.)"""

import asyncio
import random

import pytest
from tests.art_backend.engines.conftest import CONFIGS
from tests.support.decoded import random_policy, trainer_logprobs
from tests.support.tiny import build_tiny_tokenizer, save_random_model

from art_backend.engines.contract import Sampling
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.planning.architecture import PROVEN

TEMPERATURE = 0.8


@pytest.mark.vllm
@pytest.mark.parametrize("kind", PROVEN)
async def test_decode_of_vllm_is_prefill_of_the_trainer(kind, launchers, tmp_path):
    config = CONFIGS[kind].from_dict({**CONFIGS[kind].to_dict(), "hidden_size": 128, "head_dim": 32})  # vLLM's smallest
    base = save_random_model(tmp_path / "base", config, build_tiny_tokenizer(), seed=5, rough=True)
    policy = random_policy(base)
    (adapter := tmp_path / "0001").mkdir()
    policy.save(adapter)
    settings = EngineSettings(
        base, "base", tmp_path / "log", max_lora_rank=8, dtype="float32", threads=1, kv_cache_mib=32
    )
    engine = await EngineProcess.start(settings, launchers["vllm"])
    try:
        await engine.client.load_adapter("m@1", adapter)
        decoded = await _sample(engine.client)
    finally:
        await engine.stop()
    for ours, (_, sampled, theirs) in zip(trainer_logprobs(policy, decoded, TEMPERATURE), decoded, strict=True):
        assert len(ours) == sampled
        assert ours == pytest.approx(theirs, abs=1e-3)


async def _sample(client):
    """Rows with a common stem, as (ids, how many at the end were sampled, their log-probabilities)."""
    draw = random.Random(0)
    stem = [draw.randrange(3, 97) for _ in range(30)]
    prompts = [stem + [draw.randrange(3, 97) for _ in range(draw.randint(1, 12))] for _ in range(8)]
    calls = [client.generate("m@1", p, Sampling(16, temperature=TEMPERATURE, seed=i)) for i, p in enumerate(prompts)]
    answers = await asyncio.gather(*calls)
    return [(p + a.token_ids, len(a.token_ids), a.logprobs) for p, a in zip(prompts, answers, strict=True)]
