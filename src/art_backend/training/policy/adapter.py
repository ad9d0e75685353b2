"""LoRA: the base model is frozen, and an adapter (PEFT) is trained."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict
from torch import Tensor
from transformers import PreTrainedModel

from art.wire import LoraSpec
from art_backend.errors import ModelNotAvailableError
from art_backend.models.compute import choose_device, choose_dtype
from art_backend.store.checkpoints import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from art_backend.training.policy import unsloth
from art_backend.training.policy.attention import Kind
from art_backend.training.policy.base import Policy, choose_attention, load_base
from art_backend.training.policy.fused import FusedLoraLinear, fuse
from art_backend.training.state import save_tensors
from art_backend.training.types import Precision


class AdapterPolicy(Policy):
    """A base model with one trainable adapter.

    Args:
        base_path: Directory with the base model's Hugging Face files; written into the adapter's configuration as its base
            model.
        lora: Shape and seed of the adapter.
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
        device = choose_device()
        dtype = choose_dtype(precision, device)
        by_unsloth = attention is None and unsloth.is_usable()
        kind = "rows" if by_unsloth else choose_attention(attention, device)
        if by_unsloth:
            model = unsloth.load(base_path, lora, dtype, max_length)
        else:
            model = _adapt(load_base(base_path, dtype, kind, device).requires_grad_(False), lora)
        base = model.get_base_model()
        assert isinstance(base, PreTrainedModel)
        self.model = model
        self._base_path = base_path
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        super().__init__(base, trained, kind, by_unsloth=by_unsloth)

    @contextlib.contextmanager
    def as_reference(self, directory: Path | None) -> Iterator[None]:
        weights = self.model.disable_adapter() if directory is None else self._computing_with(directory)
        with torch.no_grad(), weights:
            yield

    def save(self, directory: Path) -> None:
        """As PEFT writes it: ``adapter_config.json`` and ``adapter_model.safetensors``."""
        named = {**self.model.state_dict(), **self._views}
        tensors = get_peft_model_state_dict(self.model, state_dict=named, save_embedding_layers=False)
        save_tensors(directory / ADAPTER_WEIGHTS, tensors)
        config = self.model.peft_config["default"]
        config.base_model_name_or_path = str(self._base_path)
        config.inference_mode = True
        config.save_pretrained(str(directory))
        config.inference_mode = False

    def _read(self, directory: Path, targets: Mapping[str, Tensor]) -> None:
        if not (directory / ADAPTER_WEIGHTS).exists():
            raise ModelNotAvailableError(
                f"{directory} holds no adapter: its model is fully fine-tuned. Register the model with its original settings.",
                param="full_finetune",
            )
        tensors = safetensors.torch.load_file(directory / ADAPTER_WEIGHTS)
        mine = get_peft_model_state_dict(
            self.model, state_dict={**self.model.state_dict(), **targets}, save_embedding_layers=False
        )
        wrong = sorted(
            set(tensors.keys() ^ mine.keys())
            | {n for n in tensors.keys() & mine.keys() if tensors[n].shape != mine[n].shape}
        )
        if wrong:
            theirs = json.loads((directory / ADAPTER_CONFIG).read_text())
            raise ModelNotAvailableError(
                f"The adapter in {directory} (rank {theirs.get('r')}, base model {theirs.get('base_model_name_or_path')!r}) does not"
                f" fit this model; the first of {len(wrong)} weights that differ is {wrong[0]!r}. Register the model with the same"
                " base model, rank and target modules as before, or under a new name.",
                param="lora",
            )
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])


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
