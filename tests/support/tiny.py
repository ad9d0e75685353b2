"""Tiny random models, and a byte-level ChatML tokenizer, made in a moment and without a download."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def build_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One id per byte, after three special ids; ``<|im_end|>`` (2) ends a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        bos_token="<|im_start|>",
        unk_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def build_tiny_model(path: Path, *, seed: int = 0, head_dim: int | None = None, context: int = 2048) -> Path:
    """Save a random two-layer Llama and its tokenizer as a Hugging Face directory; return the directory.

    Args:
        context: Tokens that a sequence may have; each byte is one.
        head_dim: Size of a head; ``None``: what fits the hidden size, 16. vLLM's CPU build needs 32.
    """
    tokenizer = build_tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    return save_random_model(path, config, tokenizer, seed=seed)


def save_random_model(
    path: Path,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    seed: int,
    rough: bool = False,
) -> Path:
    """Save a model of this shape with random float32 weights as a Hugging Face directory; return the directory.

    Args:
        rough: Biases and norms are random too. They begin as zeros and ones, which would hide a missing one.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if rough and name.endswith(("bias", "norm.weight")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path
