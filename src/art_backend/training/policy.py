"""The model that is trained: a frozen base with a LoRA adapter (PEFT), whose weights and their sums are kept in float32.

The adapter lives twice: as PEFT's parameters in the compute type, which forward and backward passes use, and as one flat
float32 tensor, which the optimiser updates. Gradients are added up in float32, too.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from art.wire import LoraSpec
from art_backend.errors import ModelNotAvailableError
from art_backend.training import unsloth
from art_backend.training.attention import IMPLEMENTATIONS, Kind, attention_arguments
from art_backend.training.fused import fuse
from art_backend.training.lora import FusedLoraLinear
from art_backend.training.packing import Pack
from art_backend.training.types import Precision

ADAPTER_WEIGHTS = "adapter_model.safetensors"

_LOGIT_CHANGES = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Configuration keys of models that change their logits after the head, and the value at which nothing changes."""


class Policy:
    """A base model with one trainable adapter.

    Args:
        base_path: Directory with the base model's Hugging Face files.
        lora: Shape and seed of the adapter.
        base_name: Written into the adapter's configuration as its base model.
        precision: Type of the computation; ``auto`` takes bfloat16 where the hardware multiplies it faster.
        attention: How packs attend; ``None`` takes the fastest of the device, by Unsloth where that is usable.
        max_length: Longest row, for loaders that need to know.

    Raises:
        ModelNotAvailableError: The model cannot be loaded, or computes its attention or logits in a way that the trainer
            does not know.
    """

    def __init__(
        self,
        base_path: Path,
        lora: LoraSpec,
        *,
        precision: Precision = "auto",
        attention: Kind | None = None,
        max_length: int = 4096,
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = choose_dtype(precision, self.device)
        by_unsloth = attention is None and unsloth.is_usable()
        self.attention: Kind = attention or ("flex" if self.device.type == "cuda" else "branches")
        if by_unsloth:
            self.attention = "rows"
            model = unsloth.load(base_path, lora, self.dtype, max_length)
        else:
            model = _adapt(_load_base(base_path, self.dtype, self.attention, self.device), lora)
        base = model.get_base_model()
        assert isinstance(base, PreTrainedModel)
        self.model = model
        self._base = base
        head = base.get_output_embeddings()
        assert isinstance(head, torch.nn.Linear)
        self.head: Tensor = head.weight
        self.vocabulary = int(self.head.shape[0])
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        size = sum(p.numel() for p in self._parameters.values())
        self.weights = torch.zeros(size, dtype=torch.float32, device=self.device)
        """[P]; the adapter, flat."""
        self.gradient = torch.zeros_like(self.weights)
        """[P]; the sum over the packs of the current step."""
        self._views = self._flat_views(self.weights)
        for (name, parameter), gradient in zip(
            self._parameters.items(), self._flat_views(self.gradient).values(), strict=True
        ):
            self._views[name].copy_(parameter.detach())
            parameter.register_post_accumulate_grad_hook(_adder(gradient))
        if not by_unsloth:  # its kernels are those of training; no layer of it drops out
            model.eval()  # no dropout anywhere: the distribution that is trained is the one that was sampled

    @property
    def shares_prefixes(self) -> bool:
        """Whether a pack may hold several rows."""
        return self.attention != "rows"

    def _flat_views(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [p.numel() for p in self._parameters.values()]
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(self._parameters.items(), flat.split(sizes), strict=True)
        }

    def named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter name, its part of ``gradient``)"""
        yield from self._flat_views(self.gradient).items()

    def forward(self, pack: Pack) -> Tensor:
        """Final hidden states of a pack: [T, H]."""
        arguments = attention_arguments(self.attention, pack, self.device)
        output = self._base.get_decoder()(
            input_ids=torch.from_numpy(pack.token_ids).to(self.device)[None],
            position_ids=torch.from_numpy(pack.depths).to(self.device)[None],
            use_cache=False,
            **arguments,
        )
        return output.last_hidden_state[0]

    @contextlib.contextmanager
    def as_reference(self, directory: Path | None) -> Iterator[None]:
        """Compute with other weights than the present ones, without gradients.

        Args:
            directory: A checkpoint of this model; ``None``: the base model as it is.

        Raises:
            ModelNotAvailableError: The checkpoint is another model's.
        """
        with torch.no_grad():
            if directory is None:
                with self.model.disable_adapter():
                    yield
                return
            present = self.weights.clone()
            try:
                self.load_adapter(directory)
                yield
            finally:
                self.weights.copy_(present)
                self.publish_weights()

    def set_checkpointing(self, on: bool) -> None:
        """Keep one activation per layer for the backward pass, and compute the others again, or keep them all."""
        if on == self._base.is_gradient_checkpointing:
            return
        if on:
            self._base.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self._base.gradient_checkpointing_disable()
        # Layers recompute only while they train; nothing inside of them may, or it would drop out.
        for module in self._base.modules():
            module.training = on and isinstance(module, GradientCheckpointingLayer)

    def publish_weights(self) -> None:
        """Copy the float32 weights into the parameters that compute."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._views[name])

    def save_adapter(self, directory: Path, base_name: str) -> None:
        """Write the adapter as PEFT does, in float32: ``adapter_config.json`` and ``adapter_model.safetensors``."""
        named = {**self.model.state_dict(), **self._views}
        tensors = get_peft_model_state_dict(self.model, state_dict=named, save_embedding_layers=False)
        content = safetensors.torch.save(
            {n: t.detach().cpu().contiguous() for n, t in tensors.items()}, {"format": "pt"}
        )
        # Written by us, not by safetensors: a full disk is then an OSError like any other.
        (directory / ADAPTER_WEIGHTS).write_bytes(content)
        config = self.model.peft_config["default"]
        config.base_model_name_or_path = base_name
        config.inference_mode = True
        config.save_pretrained(str(directory))
        config.inference_mode = False

    def load_adapter(self, directory: Path) -> None:
        """Take the weights of a checkpoint.

        Raises:
            ModelNotAvailableError: They are of another shape, or of another base model.
        """
        tensors = safetensors.torch.load_file(directory / ADAPTER_WEIGHTS)
        mine = get_peft_model_state_dict(
            self.model, state_dict={**self.model.state_dict(), **self._views}, save_embedding_layers=False
        )
        wrong = sorted(
            set(tensors.keys() ^ mine.keys())
            | {n for n in tensors.keys() & mine.keys() if tensors[n].shape != mine[n].shape}
        )
        if wrong:
            theirs = json.loads((directory / "adapter_config.json").read_text())
            raise ModelNotAvailableError(
                f"The adapter in {directory} (rank {theirs.get('r')}, base model {theirs.get('base_model_name_or_path')!r}) does not"
                f" fit this model; the first of {len(wrong)} weights that differ is {wrong[0]!r}. Register the model with the same"
                " base model, rank and target modules as before, or under a new name.",
                param="lora",
            )
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(tensors[name])
        self.publish_weights()


def _adapt(base: PreTrainedModel, lora: LoraSpec) -> PeftModel:
    """Put a fresh adapter on a frozen base."""
    fuse(base)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  # PEFT divides it; fractions are fine
        target_modules=lora.target_modules or "all-linear",
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    # PEFT's documented way to bring one's own layers (developer guide, "Custom models").
    config._register_custom_module({torch.nn.Linear: FusedLoraLinear})
    with torch.random.fork_rng():
        torch.manual_seed(lora.seed)
        try:
            model = get_peft_model(base, config, autocast_adapter_dtype=False)
        except ValueError as error:
            raise ModelNotAvailableError(
                f"The adapter does not fit the model: {error}", param="lora.target_modules"
            ) from error
    assert isinstance(model, PeftModel)
    return model


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of the computation."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    capabilities = torch.cpu.get_capabilities()
    fast = capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
    return torch.bfloat16 if fast else torch.float32


def _adder(total: Tensor):
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        total.add_(parameter.grad)
        parameter.grad = None

    return add


def _load_base(path: Path, dtype: torch.dtype, attention: Kind, device: torch.device) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(path)
        check_supported(config)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=IMPLEMENTATIONS[attention], device_map=str(device)
        )
    except (OSError, ValueError) as error:
        raise ModelNotAvailableError(
            f"The base model at {path} cannot be loaded: {error}", param="base_model"
        ) from error
    model.requires_grad_(False)
    return model


def check_supported(config: PretrainedConfig) -> None:
    """Raise ModelNotAvailableError for a model whose attention or logits the trainer would compute differently."""
    values = config.get_text_config().to_dict()
    problems = [
        f"{key}={values[key]}" for key, neutral in _LOGIT_CHANGES.items() if values.get(key) not in (None, neutral)
    ]
    layers = set(values.get("layer_types") or ()) - {"full_attention"}
    if layers:
        problems.append(f"layers of {', '.join(sorted(layers))}")
    elif values.get("sliding_window") and values.get("use_sliding_window", True):
        problems.append(f"sliding_window={values['sliding_window']}")
    if problems:
        raise ModelNotAvailableError(
            f"The trainer cannot train {values.get('model_type')} models with {'; '.join(problems)}. Choose a model with full"
            " attention in every layer and plain logits, such as Llama or Qwen.",
            param="base_model",
        )
