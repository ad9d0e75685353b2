"""The embedded engine without its server: steps are taken by the test."""

from dataclasses import dataclass

import pytest
import torch

from art_backend.engines.contract import Generation, Sampling
from art_backend.engines.torch_engine.engine import Engine
from art_backend.engines.torch_engine.runner import ModelRunner
from art_backend.engines.torch_engine.sequence import Sequence


@dataclass
class Driver:
    """An engine whose model loop is the test."""

    engine: Engine

    def submit(self, token_ids, sampling=None, model="base", **settings):
        """Submit a prompt; return its sequence and the list that its deliveries go to."""
        outputs = []
        sampling = sampling or Sampling(**{"max_tokens": 8, "temperature": 0.0} | settings)
        adapter = self.engine.find_adapter(model)
        sequence = Sequence(list(token_ids), sampling, adapter, self.engine.runner.max_model_len, False, outputs.append)
        self.engine.submit(sequence)
        return sequence, outputs

    def run(self):
        """Step until nothing is left."""
        while True:
            self.obey()
            if not self.engine.scheduler.has_work:
                return
            self.engine.step()

    def obey(self):
        self.engine.call(lambda: None)  # so that obeying never waits
        self.engine.obey()

    def do(self, future):
        """Let the engine carry out a command; return its result."""
        self.obey()
        return future.result(timeout=0)

    def load(self, name, path):
        self.do(self.engine.load_adapter(name, path))

    def generate(self, *args, **kwargs):
        _, outputs = self.submit(*args, **kwargs)
        self.run()
        return finished(outputs)

    @property
    def computed(self):
        return self.engine.scheduler.prompt_tokens_computed


def finished(outputs):
    (delta,) = outputs
    assert delta.finish_reason is not None
    return Generation(delta.token_ids, delta.logprobs, delta.top_logprobs, delta.finish_reason)


def _publish(outputs):
    for sequence, output in outputs:
        sequence.deliver(output)


@pytest.fixture
def make_engine(tiny_model):
    def make(family="llama", *, dtype=torch.float32, blocks=200, max_num_seqs=64, token_budget=64, max_model_len=512):
        widths = {
            "llama": 8,
            "qwen2": 2,
            "qwen3": 4,
            "mistral": 2,
            "windowed": 2,
            "smollm3": 2,
            "gemma2": 8,
            "gemma3_text": 8,
            "granite": 2,
            "olmo2": 2,
            "olmo3": 2,
            "phi3": 2,
            "wide": 4,
        }[family]
        per_block = widths * 2 * 2 * 8 * 16 * dtype.itemsize
        runner = ModelRunner(
            tiny_model(family),
            dtype=dtype,
            device=torch.device("cpu"),
            kv_cache_bytes=blocks * per_block,
            max_model_len=max_model_len,
        )
        return Driver(
            Engine(
                runner,
                served_name="base",
                max_num_seqs=max_num_seqs,
                token_budget=token_budget,
                max_loras=4,
                max_lora_rank=8,
                publish=_publish,
            )
        )

    return make
