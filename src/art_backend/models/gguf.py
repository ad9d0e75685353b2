"""Rebuild a GGUF file as a plain directory: bf16 safetensors, configuration, tokenizer.

Runs in a separate process (``python -m art_backend.models.gguf GGUF DIRECTORY``): it needs about four times the
model's size for a moment, and the service should not keep that memory.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig
from transformers.utils import logging

END_OF_TURN = "<|im_end|>"

_NOT_OF_THE_ARCHITECTURE = {
    "quantization_config",
    "_name_or_path",
    "_model_name_or_path",
    "architectures",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}
"""Configuration fields that describe the file that was read; the rest describes the network."""


def convert_llama_gguf(gguf: Path, directory: Path) -> None:
    """Write the Llama-architecture model in ``gguf`` to ``directory``.

    The tokenizer's end-of-sequence and padding token become ChatML's ``<|im_end|>``: the file names the token that
    *opens* a message, and a model that follows it would never stop.

    Raises:
        TypeError: The model is not of the Llama architecture.
        ValueError: The tokenizer does not know ChatML's tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TURN
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id == tokenizer.unk_token_id:
        raise ValueError(f"{gguf.name} has no token {END_OF_TURN}; only ChatML models can be converted.")

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    if not isinstance(loaded.config, LlamaConfig):
        raise TypeError(f"{gguf.name} is a {loaded.config.model_type} model; only Llama models can be converted.")
    architecture = {k: v for k, v in loaded.config.to_dict().items() if k not in _NOT_OF_THE_ARCHITECTURE}
    # The file stores the epsilon in single precision: 9.999999747e-06 stands for 1e-05.
    architecture["rms_norm_eps"] = float(f"{architecture['rms_norm_eps']:.6g}")
    special_ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }

    # The loaded object refuses to be saved, since it counts as quantised: its weights move into a fresh one.
    model = AutoModelForCausalLM.from_config(LlamaConfig(**architecture, **special_ids), dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(**special_ids)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    convert_llama_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
