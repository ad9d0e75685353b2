"""The model that is trained, whose weights and their sums are kept in float32.

What is trained lives twice: as the model's parameters in the compute type, which forward and backward passes use, and as one
flat float32 tensor, which the optimiser updates. Gradients are added up in float32, too. Which parameters these are, and what
a checkpoint looks like, is the business of ``AdapterPolicy`` and ``FullPolicy``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from art_backend.errors import ModelNotAvailableError
from art_backend.models.compute import own_memory
from art_backend.planning.architecture import check_proven
from art_backend.training.policy.attention import IMPLEMENTATIONS, Kind, attention_arguments, layer_windows
from art_backend.training.policy.logits import read_head
from art_backend.training.rows.packing import Ints, Pack, plain_pack

NORM_PART = 2**24
"""Numbers of the gradient whose squares are added up at a time: 128 MiB of float64."""


class Policy(ABC):
    """A causal language model, some or all of whose parameters are trained.

    Args:
        base: The whole model, on its device.
        parameters: Those that are trained, by name. They are in the type of the computation when forward is called.
        attention: How packs attend.
        by_unsloth: Whether Unsloth loaded it. Its kernels are those of training, and no layer of it drops out.
    """

    def __init__(
        self,
        base: PreTrainedModel,
        parameters: dict[str, torch.nn.Parameter],
        attention: Kind,
        *,
        by_unsloth: bool = False,
    ) -> None:
        self.device = base.device
        self.attention: Kind = attention
        self._base = base
        self.head = read_head(base)
        self.vocabulary = int(self.head.weight.shape[0])
        self._windows = layer_windows(base.config.get_text_config())
        self._parameters = parameters
        size = sum(p.numel() for p in parameters.values())
        self.weights = torch.zeros(size, dtype=torch.float32, device=self.device)
        """[P]; what is trained, flat."""
        self.gradient = torch.zeros_like(self.weights)
        """[P]; the sum over the packs of the current step."""
        self._views = self._flat_views(self.weights)
        for (name, parameter), gradient in zip(
            parameters.items(), self._flat_views(self.gradient).values(), strict=True
        ):
            self._views[name].copy_(parameter.detach())
            parameter.register_post_accumulate_grad_hook(_adder(gradient))
        if not by_unsloth:
            base.eval()  # no dropout anywhere: the distribution that is trained is the one that was sampled

    @property
    def dtype(self) -> torch.dtype:
        """Type of the computation."""
        return self.head.weight.dtype

    @property
    def shares_prefixes(self) -> bool:
        """Whether a pack may hold several rows."""
        return self.attention != "rows"

    @abstractmethod
    def as_reference(self, directory: Path | None) -> AbstractContextManager[None]:
        """Compute with other weights than the present ones, without gradients.

        Args:
            directory: A checkpoint of this model; ``None``: the base model as it is.

        Raises:
            ModelNotAvailableError: The checkpoint is another model's.
        """

    @contextmanager
    def _computing_with(self, directory: Path) -> Iterator[None]:
        """Put the weights of a checkpoint into the parameters that compute, and then those of ``weights`` again, which stay
        what they are."""
        with torch.no_grad():
            try:
                self._read(directory, self._parameters)
                yield
            finally:
                self.publish_weights()

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write what is trained into the directory of a checkpoint, in float32."""

    def load(self, directory: Path) -> None:
        """Take the weights of a checkpoint.

        Raises:
            ModelNotAvailableError: They are of another shape, or of another base model.
        """
        with torch.no_grad():
            self._read(directory, self._views)
        self.publish_weights()

    @abstractmethod
    def _read(self, directory: Path, targets: Mapping[str, Tensor]) -> None:
        """Copy the weights of a checkpoint into ``targets``, named as the parameters are. Raises like ``load``."""

    def _flat_views(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [p.numel() for p in self._parameters.values()]
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(self._parameters.items(), flat.split(sizes), strict=True)
        }

    def gradient_norm(self) -> float:
        """Euclidean norm of ``gradient``, added up in float64, of which only parts are in memory at a time."""
        return float(torch.stack([part.double().norm() for part in self.gradient.split(NORM_PART)]).norm())

    def forward(self, pack: Pack) -> Tensor:
        """Final hidden states of a pack: [T, H]."""
        arguments = attention_arguments(self.attention, pack, self.device, self._windows)
        output = self._base.get_decoder()(
            input_ids=torch.from_numpy(pack.token_ids).to(self.device)[None],
            position_ids=torch.from_numpy(pack.depths).to(self.device)[None],
            use_cache=False,
            **arguments,
        )
        return output.last_hidden_state[0]

    def logits(self, token_ids: Ints) -> Tensor:
        """Logits of one row, as the model itself computes them: [n, V] for ids [n]."""
        arguments = attention_arguments(self.attention, plain_pack(token_ids), self.device, self._windows)
        ids = torch.from_numpy(token_ids).to(self.device)[None]
        return self._base(input_ids=ids, use_cache=False, **arguments).logits[0]

    def device_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors on the device between steps: those that training leaves alone, and those that it changes."""
        trained = {id(parameter) for parameter in self._parameters.values()}
        frozen = [t for t in (*self._base.parameters(), *self._base.buffers()) if id(t) not in trained]
        return frozen, [*self._parameters.values(), self.weights, self.gradient]

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


def choose_attention(attention: Kind | None, device: torch.device) -> Kind:
    """``None`` takes the fastest of the device."""
    return attention or ("flex" if device.type == "cuda" else "branches")


def _adder(total: Tensor):
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        total.add_(parameter.grad)
        parameter.grad = None

    return add


def load_base(path: Path, dtype: torch.dtype, attention: Kind, device: torch.device) -> PreTrainedModel:
    """Load a base model.

    Raises:
        ModelNotAvailableError: That fails, its kind is not proven, or the trainer does not know its head or its layers.
    """
    try:
        check_proven(path, str(path))
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=IMPLEMENTATIONS[attention], device_map=str(device)
        )
        read_head(model)
        config = model.config.get_text_config()
        layer_windows(config)
        if IMPLEMENTATIONS[attention] == "sdpa" and getattr(config, "attn_logit_softcapping", None):
            raise ValueError("SDPA has no soft-capped attention.")
    except (OSError, ValueError) as error:
        raise ModelNotAvailableError(
            f"The base model at {path} cannot be loaded: {error}", param="base_model"
        ) from error
    own_memory(model)
    return model
