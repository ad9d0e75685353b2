"""Full fine-tuning's way to an engine: other weights in the place of its own, under a name of theirs."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.art_backend.engines.conftest import WITH_A_MODEL, logprobs_by_transformers

from art_backend.engines.client import EngineError
from art_backend.engines.contract import Sampling
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.training.policy.full import FullPolicy

PROMPT = list(range(5, 45))
GREEDY = Sampling(max_tokens=8, temperature=0.0)


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    """Another version of the model as the trainer saves it, its own state beside it."""
    path = tmp_path / "0001"
    path.mkdir()
    policy = FullPolicy(tiny_model("untied"), precision="float32")
    torch.manual_seed(3)
    policy.weights += torch.randn_like(policy.weights) * 0.1
    policy.save(path)
    save_file({"exp_avg": torch.zeros(3)}, path / "optimizer.safetensors")
    assert load_file(path / "model.safetensors")
    return path


def expected(path, completion):
    return logprobs_by_transformers(path, PROMPT, completion)


@pytest.mark.parametrize("launcher", WITH_A_MODEL)
async def test_other_weights_answer_under_their_own_name_alone(launchers, launcher, tiny_model, checkpoint, tmp_path):
    base = tiny_model("untied")
    log = tmp_path / "engine.log"
    settings = EngineSettings(base, "base", log, max_loras=0, dtype="float32", threads=1, kv_cache_mib=32)
    engine = await EngineProcess.start(settings, launchers[launcher])
    client = engine.client
    try:
        before = await client.generate("base", PROMPT, GREEDY)
        assert before.logprobs == pytest.approx(expected(base, before), abs=1e-4)
        await client.pause("wait")
        await client.load_weights("p/m@1", checkpoint)
        await client.resume()
        assert await client.models() == ["p/m@1"]
        after = await client.generate("p/m@1", PROMPT, GREEDY)
        assert after.logprobs == pytest.approx(expected(checkpoint, after), abs=1e-4)
        assert after.logprobs != pytest.approx(before.logprobs, abs=0.01)
        for call in (client.generate("base", PROMPT, GREEDY), anext(client.stream("base", PROMPT, GREEDY))):
            with pytest.raises(EngineError, match="base") as unknown:
                await call
            assert unknown.value.status == 404
        await client.load_weights("base", base)
        again = await client.generate("base", PROMPT, GREEDY)
        assert again.token_ids == before.token_ids
        assert again.logprobs == pytest.approx(before.logprobs, abs=1e-5)
    finally:
        await engine.stop()
