"""The contents of a device's memory, over time.

On one device engine and trainer take turns (docs/architecture.md, "One step"): while rollouts run, the trainer's tensors are in
the CPU's memory; while the trainer works, the engine's are. The plan therefore has two columns, and what must fit is the
larger one. On devices of their own, each column is a device.

Weights, gradients, optimiser and KV cache are exact. Activations are what the trainer's layers keep for their backward pass,
tensor by tensor. What libraries take for themselves is a round figure (``PROCESS_BYTES``, ``GRAPH_BYTES``).
"""

from dataclasses import dataclass
from typing import Literal

from art.wire import Optimizer
from art_backend.planning.architecture import Architecture

Placement = Literal["colocated", "dedicated"]

GIB = 2**30
COMPUTE_BYTES = 2
"""Of a number in bfloat16, in which both sides compute."""

PROCESS_BYTES = round(0.6 * GIB)
"""CUDA context, kernels and library workspaces of one process; they stay on the device while its tensors are away."""

GRAPH_BYTES = round(0.9 * GIB)
"""CUDA graphs and communication buffers of vLLM; they stay while it sleeps."""

GPU_MEMORY_SHARE = 0.9
"""Of the device's memory, for vLLM's weights and KV cache while it is awake (``--gpu-memory-utilization``)."""

VERSIONS_IN_A_BATCH = 2
"""Adapters that vLLM computes in one step (``--max-loras``): the version that rollouts use, and the one before it, which
requests in flight and evaluations may still use. More wait their turn, in CPU memory (``--max-cpu-loras``)."""

LOGIT_BYTES = 320 * 2**20
"""Chunks of the trainer's logits and kept probabilities (``training.policy.logits``: four of 48 MiB, and 128 MiB)."""

SPARE_SHARE = 0.05
"""Of the device, for what the allocator cannot use: below this, a plan is called tight."""

EMBEDDED_KV_BYTES = GIB
"""KV cache of the embedded engine, which serves fully fine-tuned models, unless one sequence needs more."""

_EMBEDDED_SPARE_TOKENS = 64
"""Beside one sequence of full length: the embedded engine keeps whole blocks, and one in reserve."""

DEFAULT_BATCH_TOKENS = 16_384
"""Packed tokens per forward pass on CUDA, unless rows are longer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The training to plan for, and its device."""

    architecture: Architecture
    device_bytes: int
    """Memory of one device."""
    context: int = 4096
    """Longest prompt plus completion, in tokens."""
    lora_rank: int = 16
    target_modules: tuple[str, ...] | None = None
    batch_tokens: int | None = None
    """Packed tokens per forward pass (``micro_batch_tokens``); ``None``: the trainer's own choice."""
    full: bool = False
    """Whether all weights are trained instead of an adapter."""
    optimizer: Optimizer = Optimizer.ADAMW
    gradient_checkpointing: bool = False
    placement: Placement = "colocated"
    max_sequences: int = 64
    """Completions that the engine samples at the same time."""

    @property
    def pass_tokens(self) -> int:
        """Tokens of the largest forward pass: a row is never cut."""
        wanted = self.batch_tokens or max(DEFAULT_BATCH_TOKENS, 2 * self.context)
        return max(wanted, self.context)


@dataclass(frozen=True, slots=True)
class Part:
    """One use of memory, in bytes."""

    name: str
    rollouts: int
    """On the device while rollouts run (``dedicated``: on the engine's)."""
    training: int
    """On the device while the trainer works (``dedicated``: on the trainer's)."""
    host: int = 0
    """In the CPU's memory while it is not on the device."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where everything is, and whether it fits."""

    wanted: Wanted
    parts: tuple[Part, ...]
    kv_tokens: int
    """Tokens that the engine's KV cache holds."""

    @property
    def rollouts(self) -> int:
        return sum(part.rollouts for part in self.parts)

    @property
    def training(self) -> int:
        return sum(part.training for part in self.parts)

    @property
    def host(self) -> int:
        return sum(part.host for part in self.parts)

    @property
    def saving(self) -> int:
        """How much more the device would need if nothing ever left it; 0 on devices of their own."""
        if self.wanted.placement == "dedicated":
            return 0
        together = sum(max(part.rollouts, part.training) for part in self.parts)
        return together - max(self.rollouts, self.training)

    @property
    def rollouts_fit(self) -> bool:
        """Whether the engine has room for one sequence of full length, without which it does not start."""
        return self.kv_tokens >= self.wanted.context and self.rollouts <= self.wanted.device_bytes

    @property
    def training_fits(self) -> bool:
        return self.training <= self.wanted.device_bytes

    @property
    def fits(self) -> bool:
        return self.rollouts_fit and self.training_fits

    @property
    def tight(self) -> bool:
        """Whether training fits by so little that fragmentation may break it."""
        return self.fits and self.training > self.wanted.device_bytes * (1 - SPARE_SHARE)

    @property
    def fits_well(self) -> bool:
        return self.fits and not self.tight


def plan(wanted: Wanted) -> MemoryPlan:
    """Add up what is in memory during rollouts and during training."""
    a, away = wanted.architecture, wanted.placement == "colocated"
    weights = a.parameters() * COMPUTE_BYTES
    trained = a.parameters() if wanted.full else a.lora_parameters(wanted.lora_rank, wanted.target_modules)
    adapters = 0 if wanted.full else VERSIONS_IN_A_BATCH * trained * COMPUTE_BYTES
    stays = PROCESS_BYTES + (0 if wanted.full else GRAPH_BYTES)
    working = engine_working_bytes(wanted)
    kv_bytes = _kv_cache_bytes(wanted, weights + adapters + stays + working)
    kv_host = kv_bytes if wanted.full and away else 0  # vLLM computes a frozen request's cache again instead
    frozen = 0 if wanted.full else weights
    copies = COMPUTE_BYTES * trained
    state = (4 + 4) * trained
    moments = _moment_bytes(wanted.optimizer, trained)
    activations = activation_bytes(wanted)

    def trainer(name: str, size: int, *, kept: bool = True) -> Part:
        return Part(name, 0, size, host=size if away and kept else 0)

    parts = (
        Part("engine: weights", weights, 0, host=weights if away else 0),
        Part("engine: KV cache", kv_bytes, 0, host=kv_host),
        Part("engine: adapters", adapters, 0, host=adapters if away else 0),
        Part("engine: activations", working, 0),
        Part("engine: libraries", stays, stays if away else 0),
        trainer("trainer: frozen weights", frozen),
        trainer("trainer: trained weights, bf16", copies),
        trainer("trainer: weights and gradient, fp32", state),
        trainer("trainer: optimiser", moments),
        trainer("trainer: activations", activations, kept=False),
        Part("trainer: libraries", PROCESS_BYTES if away else 0, PROCESS_BYTES),
    )
    return MemoryPlan(wanted, tuple(p for p in parts if p.rollouts or p.training), kv_bytes // kv_bytes_per_token(a))


def kv_bytes_per_token(a: Architecture) -> int:
    """Keys and values of one token in every layer (Pope et al. 2022, arXiv:2211.05102)."""
    return 2 * a.layers * a.kv_width * COMPUTE_BYTES


def embedded_kv_bytes(a: Architecture, context: int) -> int:
    """Size of the embedded engine's KV cache for sequences of up to ``context`` tokens."""
    return max(EMBEDDED_KV_BYTES, (context + _EMBEDDED_SPARE_TOKENS) * kv_bytes_per_token(a))


def _kv_cache_bytes(wanted: Wanted, taken: int) -> int:
    """Size of the KV cache: what the engine's share of the device leaves. vLLM takes all of it; the embedded engine a fixed size."""
    if wanted.full:
        return embedded_kv_bytes(wanted.architecture, wanted.context)
    return max(0, int(wanted.device_bytes * GPU_MEMORY_SHARE) - taken)


def engine_working_bytes(wanted: Wanted) -> int:
    """One prefill step and the logits of every sequence.

    A step of vLLM has up to 2,048 tokens, 8,192 on devices of 70 GiB and more (its defaults for a server), and holds of one layer the
    gated MLP's two halves, their product, and the residual stream twice. Logits are float32, with two copies for sampling.
    """
    a = wanted.architecture
    tokens = 8192 if wanted.device_bytes >= 70 * GIB else 2048
    layer = tokens * (3 * a.intermediate + 2 * a.hidden) * COMPUTE_BYTES
    return layer + 3 * 4 * wanted.max_sequences * a.vocabulary


def _moment_bytes(optimizer: Optimizer, trained: int) -> int:
    """Two moments of each trained parameter (Loshchilov & Hutter 2019, arXiv:1711.05101), of 4 bytes, or of 1 and a scale of 4 for
    256 of them (Dettmers et al. 2022, arXiv:2110.02861)."""
    return 2 * (trained + 4 * -(-trained // 256)) if optimizer is Optimizer.PAGED_ADAMW_8BIT else 8 * trained


def layer_activation_bytes(a: Architecture, *, lora_rank: int | None, flex: bool = True) -> int:
    """Bytes that one layer keeps of one token for the backward pass.

    Counted by tensors, as Korthikanti et al. 2022 (arXiv:2205.05198) do, for the layers that are trained here. With H the hidden size,
    I the intermediate one, Q and K the widths of all query and all key heads:

    - an adapter on frozen weights (``training.policy.fused``): inputs of two norms, of the attention's and of the MLP's
      projections (4H); queries, keys, values and the attention's output (2Q + 2K); the gate (I); the r numbers
      between A and B of six projections; and a float32 number for each norm and each query head.
    - all weights: the same but for the norms, whose input is kept in float32 and once more normalised; and of the MLP the
      activation and the product, too (4I).

    Args:
        lora_rank: ``None``: all weights are trained.
        flex: Whether attention is FlexAttention, as on CUDA, which keeps its output once more.
    """
    q, k, h, i = a.query_width, a.kv_width, a.hidden, a.intermediate
    scales = 4 * (2 + a.heads)
    if lora_rank is None:
        numbers, wide = 4 * h + 2 * q + 2 * k + 4 * i, 2 * 4 * h
    else:
        numbers, wide = 4 * h + 2 * q + 2 * k + i + 6 * lora_rank, 0
    if a.head_norms:
        numbers += q + k
        scales += 4 * (a.heads + a.kv_heads)
        wide += 4 * (q + k) if lora_rank is None else 0
    if flex:
        numbers += q
    return numbers * COMPUTE_BYTES + wide + scales


def activation_bytes(wanted: Wanted) -> int:
    """Most that one forward and backward pass holds beside weights and gradients.

    Every layer's tensors, or with checkpointing one input per layer (Chen et al. 2016, arXiv:1604.06174) and a single layer's tensors;
    the gradients inside the layer that is being differentiated; and chunks of logits.
    """
    a, tokens = wanted.architecture, wanted.pass_tokens
    layer = layer_activation_bytes(a, lora_rank=None if wanted.full else wanted.lora_rank)
    stored = a.layers * a.hidden * COMPUTE_BYTES + layer if wanted.gradient_checkpointing else a.layers * layer
    inside = (4 * a.intermediate + 4 * a.hidden) * COMPUTE_BYTES
    head_gradient = 2 * 4 * a.vocabulary * a.hidden if wanted.full else 0
    return tokens * (stored + inside) + LOGIT_BYTES + head_gradient
