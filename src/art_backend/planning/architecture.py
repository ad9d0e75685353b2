"""A model by the numbers of its ``config.json``: how many parameters it has, and where."""

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, StrictDataclassError

from art_backend.errors import BadRequestError, ModelNotAvailableError
from art_backend.models.base import prepared_path

PLANNED = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""``model_type`` of the models whose memory is planned: decoders with grouped-query attention, a gated MLP and two RMSNorms in
each layer."""

PROVEN = (*PLANNED, "gemma2", "gemma3_text", "granite", "olmo2", "olmo3", "phi3")
"""``model_type`` of the models that are served and trained: the tests prove for each that both engines and the trainer, over
packed rows, give the same log-probabilities."""

_ATTENTION = {"full_attention", "sliding_attention"}
"""``layer_types`` that both engines and the trainer compute."""


def check_proven(directory: Path, name: str) -> None:
    """Return if the model in ``directory`` is of a proven kind.

    Raises:
        ModelNotAvailableError: It is of another, or has layers that attend in a way that is not proven: the trainer would
            compute other log-probabilities than the engine. Or its configuration cannot be read.
    """
    try:
        kind = json.loads((directory / "config.json").read_text())["model_type"]
        problems = _differences(directory) if kind in PROVEN else [f"model_type={kind!r}"]
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise ModelNotAvailableError(
            f"base_model: {directory / 'config.json'} is not a model configuration: {error!r}. Write it with save_pretrained.",
            param="base_model",
        ) from error
    if problems:
        raise ModelNotAvailableError(
            f"base_model: {name!r} cannot be trained: {'; '.join(problems)}. Tests verify that engine and trainer agree for "
            f"{', '.join(PROVEN)} models. Choose one of these, such as Qwen/Qwen2.5-1.5B-Instruct.",
            param="base_model",
        )


def _differences(directory: Path) -> list[str]:
    """Settings under which a proven kind of model attends in another way."""
    from transformers import AutoConfig  # slow to import, and the planner asks for numbers alone

    values = AutoConfig.from_pretrained(directory).get_text_config().to_dict()
    found = [f"layers of {kind}" for kind in sorted(set(values.get("layer_types") or ()) - _ATTENTION)]
    if values.get("use_bidirectional_attention"):
        found.append("use_bidirectional_attention=True")
    return found


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) and a gated MLP (Shazeer 2020,
    arXiv:2002.05202)."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    """Longest sequence that it was made for, in tokens."""
    tied: bool = False
    """Whether the output head is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    """Whether each head's query and key have a norm of their own."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each linear layer of one decoder layer, by name."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        layer = sum(inputs * outputs for inputs, outputs in self.linears().values()) + 2 * self.hidden
        layer += self.qkv_bias * (self.query_width + 2 * self.kv_width) + self.output_bias * self.hidden
        layer += self.mlp_bias * (2 * self.intermediate + self.hidden) + self.head_norms * 2 * self.head_dim
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden

    def lora_parameters(self, rank: int, target_modules: Collection[str] | None = None) -> int:
        """Parameters of an adapter: A [r, in] and B [out, r] of each layer (Hu et al. 2021, arXiv:2106.09685).

        Args:
            target_modules: Names of the linear layers that get one; ``None``: all of them.

        Raises:
            BadRequestError: None of these names is a layer of the model.
        """
        shapes = self.linears()
        chosen = [shapes[name] for name in shapes if target_modules is None or name in target_modules]
        if not chosen:
            raise BadRequestError(
                f"lora.target_modules: none of {list(target_modules or ())} is one of {sorted(shapes)}.",
                param="lora.target_modules",
            )
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in chosen)


KNOWN = {
    known.name: known
    for known in (
        Architecture("Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151_936, 32_768, tied=True, qkv_bias=True),
        Architecture("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151_936, 32_768, tied=True, qkv_bias=True),
        Architecture("Qwen2.5-3B", 36, 2048, 11_008, 16, 2, 128, 151_936, 32_768, tied=True, qkv_bias=True),
        Architecture("Qwen2.5-7B", 28, 3584, 18_944, 28, 4, 128, 152_064, 32_768, qkv_bias=True),
        Architecture("Qwen2.5-14B", 48, 5120, 13_824, 40, 8, 128, 152_064, 32_768, qkv_bias=True),
        Architecture("Qwen2.5-32B", 64, 5120, 27_648, 40, 8, 128, 152_064, 32_768, qkv_bias=True),
        Architecture("Qwen2.5-72B", 80, 8192, 29_568, 64, 8, 128, 152_064, 32_768, qkv_bias=True),
        Architecture("Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, tied=True, head_norms=True),
        Architecture("Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151_936, 40_960, tied=True, head_norms=True),
        Architecture("Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151_936, 40_960, tied=True, head_norms=True),
        Architecture("Qwen3-8B", 36, 4096, 12_288, 32, 8, 128, 151_936, 40_960, head_norms=True),
        Architecture("Qwen3-14B", 40, 5120, 17_408, 40, 8, 128, 151_936, 40_960, head_norms=True),
        Architecture("Qwen3-32B", 64, 5120, 25_600, 64, 8, 128, 151_936, 40_960, head_norms=True),
        Architecture("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128_256, 131_072, tied=True),
        Architecture("Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128_256, 131_072, tied=True),
        Architecture("Llama-3.1-8B", 32, 4096, 14_336, 32, 8, 128, 128_256, 131_072),
        Architecture("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49_152, 8192, tied=True),
        Architecture("SmolLM2-360M", 32, 960, 2560, 15, 5, 64, 49_152, 8192, tied=True),
        Architecture("SmolLM2-1.7B", 24, 2048, 8192, 32, 32, 64, 49_152, 8192, tied=True),
    )
}
"""Models that are planned without their files, by the last part of their hub id without ``-Instruct``."""


def read_architecture(name: str, *, cache: Path | None = None) -> Architecture:
    """Find a model's numbers: in a local directory, in a cache, or among the known ones.

    Args:
        name: A local directory, a hub id, or the last part of a known model's hub id.
        cache: Where prepared models are kept; ``None`` means ``default_cache()``.

    Raises:
        BadRequestError: The model is unknown, or of a kind that is not planned.
    """
    places = [directory / "config.json" for directory in (Path(name).expanduser(), prepared_path(name, cache))]
    with contextlib.suppress(HFValidationError):
        places += [Path(found) for found in [try_to_load_from_cache(name, "config.json")] if isinstance(found, str)]
    for file in places:
        if file.is_file():
            return parse_config(json.loads(file.read_text()), name)
    short = name.rsplit("/", 1)[-1].removesuffix("-Instruct").removesuffix("-Base")
    if short in KNOWN:
        return replace(KNOWN[short], name=name)
    raise BadRequestError(
        f"model: found no config.json of {name!r} here, and the planner knows only {', '.join(KNOWN)} without one. Give the path of "
        f"the model's directory, or fetch the file: hf download {name} config.json",
        param="model",
    )


def parse_config(config: dict[str, Any], name: str) -> Architecture:
    """Read a ``config.json``.

    Raises:
        BadRequestError: The model is of another kind than those that are planned.
    """
    kind = config.get("model_type")
    if kind not in PLANNED:
        raise BadRequestError(
            f"model: the memory of {kind} models is not planned, only that of {', '.join(PLANNED)}.",
            param="model",
        )
    heads, bias = config["num_attention_heads"], bool(config.get("attention_bias", False))
    return Architecture(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", kind == "smollm3")),
        context=config["max_position_embeddings"],
        qkv_bias=bias or kind == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        head_norms=kind == "qwen3",
    )
