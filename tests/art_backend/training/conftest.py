"""A tiny random model, and rows to train it on."""

import pytest
import torch
from tests.support.tiny import save_random_model
from transformers import LlamaConfig

from art.wire import LoraSpec, TokenRow
from art_backend.training.types import ModelSetup, ScoredTrajectory

VOCABULARY = 61


@pytest.fixture(scope="session")
def base_path(tmp_path_factory):
    """A random Llama in float32, with grouped-query attention and tied embeddings. Its logits are far from flat."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return save_random_model(tmp_path_factory.mktemp("models") / "tiny", config, seed=7)


@pytest.fixture
def setup(base_path, tmp_path):
    return ModelSetup(
        base_path=base_path,
        lora=LoraSpec(rank=4, alpha=8),
        max_sequence_length=64,
        checkpoints=tmp_path / "checkpoints",
        precision="float32",
    )


@pytest.fixture
def make_row():
    """``make_row(prompt, completion, …)``: a row whose completion was sampled."""

    def make(prompt, completion, logprob=-2.0, temperature=1.0):
        n, m = len(prompt), len(completion)
        return TokenRow(
            token_ids=[*prompt, *completion],
            sampled=[False] * n + [True] * m,
            logprobs=[0.0] * n + [logprob] * m,
            policy_versions=[-1] * n + [0] * m,
            temperature=temperature,
        )

    return make


@pytest.fixture
def make_groups(make_row):
    """Two groups of three one-row trajectories with a learning signal."""

    def make(seed=0):
        generator = torch.Generator().manual_seed(seed)

        def draw(n):
            return torch.randint(1, VOCABULARY, (n,), generator=generator).tolist()

        groups = []
        for _ in range(2):
            prompt = draw(9)
            groups.append(
                [ScoredTrajectory(reward, [make_row(prompt, draw(n))]) for reward, n in ((0.0, 3), (1.0, 5), (0.3, 4))]
            )
        return groups

    return make
