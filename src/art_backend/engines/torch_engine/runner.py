"""The model and its memory: one forward pass over the chunks of a step."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from art_backend.engines.torch_engine import attention
from art_backend.engines.torch_engine.adapters import Adapter, AdapterBank, Segment
from art_backend.engines.torch_engine.attention import AttentionStep, ProbeStep, UnsupportedModelError
from art_backend.engines.torch_engine.kv_pool import KvPool, LayerShape
from art_backend.engines.torch_engine.sequence import BLOCK_SIZE, Chunk
from art_backend.models import exact
from art_backend.models.compute import own_memory


class WeightsError(ValueError):
    """The weights cannot be served; the message says why. Those that were served are still there."""


class ExactHead(torch.nn.Module):
    """A model's own output head, with logits in float32."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = head.weight
        self.bias = head.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] → [..., vocab] float32."""
        logits = exact.linear(hidden.flatten(0, -2), self.weight)
        if self.bias is not None:
            logits += self.bias
        return logits.unflatten(0, hidden.shape[:-1])


class ModelRunner:
    """A causal language model of transformers over a paged KV cache.

    Args:
        path: Model directory.
        dtype: Of weights and cache.
        kv_cache_bytes: Size of the KV cache; at least one sequence of ``max_model_len`` tokens must fit.
        max_model_len: Longest sequence; ``None`` takes the model's own limit.

    Raises:
        UnsupportedModelError: The model does not attend through transformers' attention interface, or in a way that
            is not computed here.
        ValueError: The cache is too small.
    """

    def __init__(
        self, path: Path, *, dtype: torch.dtype, device: torch.device, kv_cache_bytes: int, max_model_len: int | None
    ) -> None:
        self.path = path
        self.device = device
        self.dtype = dtype
        config = AutoConfig.from_pretrained(path).get_text_config()
        self.vocab_size: int = config.vocab_size
        limit: int = config.max_position_embeddings
        self.max_model_len = limit if max_model_len is None else max_model_len
        if self.max_model_len > limit:
            raise ValueError(f"--max-model-len {self.max_model_len} exceeds the {limit} positions of {path}.")
        attention.register()
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention.IMPLEMENTATION
        )
        own_memory(model)
        self._model = model.to(device).eval().requires_grad_(False)
        self._model.set_output_embeddings(ExactHead(self._model.get_output_embeddings()))
        self.adapters = AdapterBank(self._model)
        layers = self._probe(config.num_hidden_layers)
        per_token = sum(layer.bytes_per_token(dtype) for layer in layers)
        num_blocks = kv_cache_bytes // (per_token * BLOCK_SIZE)
        needed = -(-self.max_model_len // BLOCK_SIZE) + 1
        if num_blocks < needed:
            raise ValueError(
                f"A KV cache of {kv_cache_bytes / 2**20:.0f} MiB holds {num_blocks * BLOCK_SIZE} tokens, less than one "
                f"sequence of {self.max_model_len}. Give it at least {needed * per_token * BLOCK_SIZE / 2**20:.0f} MiB "
                "(--kv-cache-mib), or set a smaller --max-model-len."
            )
        self.pool = KvPool(layers, num_blocks, dtype, device)

    @torch.inference_mode()
    def forward(self, chunks: list[Chunk], copies: list[tuple[int, int]]) -> tuple[Tensor, list[Chunk]]:
        """Compute the keys and values of ``chunks``, and logits where the next token is sampled.

        Returns:
            Logits ``[S, vocab]`` and the chunks that its rows belong to.
        """
        if copies:
            self.pool.copy(copies)
        # short chunks first and by length, so that neighbours can attend together
        chunks = sorted(chunks, key=lambda c: (c.count, c.end))
        ids: list[int] = []
        positions: list[int] = []
        last_rows: list[int] = []
        sampling: list[Chunk] = []
        for chunk in chunks:
            ids += chunk.sequence.tokens[chunk.start : chunk.end]
            positions += range(chunk.start, chunk.end)
            if chunk.samples:
                last_rows.append(len(ids) - 1)
                sampling.append(chunk)
        if len(ids) == 1:
            # linear layers sum a single row in another order than several (see ``exact``)
            ids, positions = ids * 2, positions * 2
        self.adapters.segments = _segments(chunks, self.device)
        logits = self._call(ids, positions, last_rows, AttentionStep(chunks, self.pool))
        return logits, sampling

    def _call(self, ids: list[int], positions: list[int], rows: list[int], step: AttentionStep | ProbeStep) -> Tensor:
        return self._model(
            input_ids=torch.tensor([ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            # indices pick the rows whose logits are computed; one row at least keeps every model's head happy
            logits_to_keep=torch.tensor(rows or [0], device=self.device),
            paged_step=step,
        ).logits[0, : len(rows)]

    @torch.inference_mode()
    def _probe(self, num_layers: int) -> list[LayerShape]:
        """Find each layer's key/value shape, and that every layer attends through ours."""
        probe = ProbeStep()
        self._call([0, 0], [0, 1], [1], probe)
        if sorted(probe.shapes) != list(range(num_layers)):
            raise UnsupportedModelError(
                f"Only {len(probe.shapes)} of the {num_layers} layers of {self.path} attend through transformers' "
                "attention interface; the embedded engine cannot serve this model. Use vLLM."
            )
        return [probe.shapes[layer] for layer in range(num_layers)]

    def load_weights(self, path: Path) -> None:
        """Take the weights of another version, in a Hugging Face folder. Raises as ``_read_weights`` does."""
        _read_weights(self._model, path)
        self.path = path

    def move_weights(self, device: torch.device, adapters: list[Adapter]) -> None:
        """Move the model and the matrices of ``adapters``."""
        self._model.to(device)
        for adapter in adapters:
            for path, (a, b) in adapter.weights.items():
                adapter.weights[path] = (a.to(device), b.to(device))


def _segments(chunks: list[Chunk], device: torch.device) -> list[Segment]:
    """Which rows of the step use which adapter."""
    adapters = {chunk.sequence.adapter for chunk in chunks}
    if adapters == {None}:
        return []
    if len(adapters) == 1:
        return [(adapter, None) for adapter in adapters if adapter is not None]
    rows: dict[int, list[int]] = {}
    row = 0
    for chunk in chunks:
        rows.setdefault(chunk.sequence.adapter_id, []).extend(range(row, row + chunk.count))
        row += chunk.count
    # a single row twice, as in ``exact``: both give and take the same values
    return [
        (adapter, torch.tensor(own * 2 if len(own := rows[adapter.id]) == 1 else own, device=device))
        for adapter in adapters
        if adapter is not None
    ]


def _read_weights(model: nn.Module, path: Path) -> None:
    """Copy the weights of ``path`` into ``model``, in the model's own type.

    Every name and shape is checked before the first weight is changed.

    Raises:
        WeightsError: A file cannot be read, or the weights are another model's. Nothing was changed.
        SafetensorError, OSError: Reading failed half-way: the model is now neither the old one nor the new one.
    """
    targets = dict(model.named_parameters())
    aliases = model.state_dict().keys() - targets.keys()  # the second name of a weight that two layers share
    places: dict[str, Path] = {}
    try:
        for file in sorted(path.glob("model*.safetensors")):
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118
                    if name in aliases:
                        continue
                    shape = content.get_slice(name).get_shape()
                    if name not in targets or list(targets[name].shape) != shape:
                        own = list(targets[name].shape) if name in targets else "no such weight"
                        raise WeightsError(f"{file}: {name} has shape {shape}; the model that is served has {own}.")
                    places[name] = file
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} holds no readable weights: {error}") from error
    if missing := sorted(targets.keys() - places.keys()):
        raise WeightsError(f"{path} lacks {len(missing)} weights of the model that is served, such as {missing[0]}.")
    with torch.no_grad():
        for file in sorted(set(places.values())):
            with safe_open(file, framework="pt", device=str(next(iter(targets.values())).device)) as content:
                for name in (n for n, place in places.items() if place == file):
                    targets[name].copy_(content.get_tensor(name))
