"""From a chat request's fields to how the engine samples, and whether what it samples can be trained."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art_backend.errors import BadRequestError
from art_backend.inference.contract import Sampling

Number = int | float


class SamplingFields(BaseModel):
    """The fields of a request that bear on sampling. Others are ignored, as the protocol asks."""

    model_config = ConfigDict(extra="ignore", strict=True)

    temperature: Number | None = Field(default=None, ge=0, le=2)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is sampled."""

    sampling: Sampling
    n: int
    stop: tuple[str, ...]
    logprobs: bool
    untrainable: str | None
    """The setting that makes its turns untrainable, in words."""


def plan_sampling(body: dict[str, Any], stop_token_ids: tuple[int, ...], room: int) -> Plan:
    """Read the sampling fields of a request.

    Args:
        room: Tokens left between the prompt and the model's maximum length; a larger ``max_tokens`` is cut to it.

    Raises:
        BadRequestError: A field has a wrong type or value.
    """
    try:
        fields = SamplingFields.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise BadRequestError(f"{name}: {first['msg']}.", param=name) from error
    limit = fields.max_completion_tokens or fields.max_tokens or room
    temperature = 1.0 if fields.temperature is None else float(fields.temperature)
    sampling = Sampling(
        max_tokens=min(limit, room),
        temperature=temperature,
        top_p=1.0 if fields.top_p is None else float(fields.top_p),
        top_k=fields.top_k if fields.top_k is not None and fields.top_k > 0 else None,
        min_p=float(fields.min_p or 0),
        presence_penalty=float(fields.presence_penalty or 0),
        frequency_penalty=float(fields.frequency_penalty or 0),
        repetition_penalty=1.0 if fields.repetition_penalty is None else float(fields.repetition_penalty),
        stop_token_ids=stop_token_ids,
        seed=fields.seed,
        top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else 0,
    )
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return Plan(sampling, fields.n or 1, tuple(s for s in stop if s), bool(fields.logprobs), _untrainable(sampling))


def _untrainable(sampling: Sampling) -> str | None:
    """Name the setting under which the reported probabilities are not those of the policy that is trained."""
    for name, value, neutral in (
        ("top_p", sampling.top_p, 1.0),
        ("top_k", sampling.top_k, None),
        ("min_p", sampling.min_p, 0.0),
        ("presence_penalty", sampling.presence_penalty, 0.0),
        ("frequency_penalty", sampling.frequency_penalty, 0.0),
        ("repetition_penalty", sampling.repetition_penalty, 1.0),
    ):
        if value != neutral:
            return f"it was sampled with {name}={value}; set it to {neutral} in rollouts that are to be trained"
    if sampling.temperature == 0:
        return "it was sampled greedily (temperature=0); sample at temperature 1 in rollouts that are to be trained"
    return None
