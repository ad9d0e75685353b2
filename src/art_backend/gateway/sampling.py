"""From a request's fields to how the engine samples, and whether what it samples can be trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from art_backend.engines.contract import Sampling
from art_backend.errors import BadRequestError
from art_backend.tokens.grammar import Structure


class Fields(BaseModel):
    """Fields of a request, of exactly their types."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class SamplingFields(Fields):
    """The fields of a request that bear on sampling and have one name in all protocols."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(default=None, max_length=1024)
    ignore_eos: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is sampled."""

    sampling: Sampling
    n: int
    stop: tuple[str, ...]
    logprobs: bool
    stop_token_ids: tuple[int, ...]
    """Ids that end a completion beside the model's own. They are sampled, but not shown."""
    ignore_eos: bool
    """Whether the model's own do not end it."""
    untrainable: str | None
    """The setting that makes its turns untrainable, in words."""

    def fit(self, room: int, stop_token_ids: tuple[int, ...], structure: Structure | None = None) -> "Plan":
        """Cut to the ``room`` (tokens) that a prompt leaves, with what ends and shapes a completion of this model.

        Raises:
            BadRequestError: ``ignore_eos`` beside a structure, which ends where it is whole.
        """
        if self.ignore_eos and structure is not None:
            raise BadRequestError(
                "ignore_eos: cannot be combined with structured output; leave one of them out.", param="ignore_eos"
            )
        own = () if self.ignore_eos else stop_token_ids
        stop_token_ids = tuple(dict.fromkeys((*own, *self.stop_token_ids)))
        limit = min(self.sampling.max_tokens, room)
        sampling = replace(self.sampling, max_tokens=limit, stop_token_ids=stop_token_ids, structure=structure)
        return replace(self, sampling=sampling)

    def sampling_of(self, choice: int) -> Sampling:
        """How one of the ``n`` choices is sampled: a seed makes the request repeatable, not its choices the same."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=(seed + choice) % 2**63)

    def shown(self, ids: list[int]) -> list[int]:
        """Drop a final id that only the request made a stop: it has no text."""
        return ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids

    def with_logprobs(self, logprobs: bool) -> "Plan":
        """The same, with or without log-probabilities in the answer."""
        return replace(self, logprobs=logprobs)

    def settings(self) -> dict[str, Any]:
        """What was asked for, as it is kept with each turn: the temperature, and all that is not neutral."""
        sampling = self.sampling
        settings: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
        settings |= {name: value for name, value, neutral in _shaping(sampling) if value != neutral}
        if sampling.seed is not None:
            settings["seed"] = sampling.seed
        if self.stop:
            settings["stop"] = list(self.stop)
        if sampling.structure is not None:
            settings["structured_outputs"] = sampling.structure.to_wire()
        if sampling.structure is not None or self.stop_token_ids or self.ignore_eos:
            settings["stop_token_ids"] = list(sampling.stop_token_ids)
        return settings


_UNLIMITED = 2**31 - 1


def plan_sampling(
    fields: SamplingFields,
    *,
    max_tokens: int | None = None,
    stop: str | Sequence[str] | None = None,
    n: int | None = None,
    logprobs: bool = False,
    top_logprobs: int | None = None,
) -> Plan:
    """Plan how a request is sampled; ``None`` is the default of a field that protocols name differently."""
    sampling = Sampling(
        max_tokens=max_tokens or _UNLIMITED,
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=fields.top_k if fields.top_k is not None and fields.top_k > 0 else None,
        min_p=fields.min_p or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        seed=fields.seed,
        top_logprobs=(top_logprobs or 0) if logprobs else 0,
    )
    return Plan(
        sampling=sampling,
        n=n or 1,
        stop=tuple(s for s in ([stop] if isinstance(stop, str) else stop or ()) if s),
        logprobs=logprobs,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        untrainable=_untrainable(sampling),
    )


def _shaping(sampling: Sampling) -> tuple[tuple[str, Any, Any], ...]:
    """Settings that change the distribution beside the temperature: name, value, neutral value."""
    return (
        ("top_p", sampling.top_p, 1.0),
        ("top_k", sampling.top_k, None),
        ("min_p", sampling.min_p, 0.0),
        ("presence_penalty", sampling.presence_penalty, 0.0),
        ("frequency_penalty", sampling.frequency_penalty, 0.0),
        ("repetition_penalty", sampling.repetition_penalty, 1.0),
    )


def _untrainable(sampling: Sampling) -> str | None:
    """Name the setting under which the reported probabilities are not those of the policy that is trained."""
    for name, value, neutral in _shaping(sampling):
        if value != neutral:
            remedy = "leave it out" if neutral is None else f"set it to {neutral:g}"
            return f"it was sampled with {name}={value:g}; {remedy} in rollouts that are to be trained"
    if sampling.temperature == 0:
        return "it was sampled greedily (temperature=0); sample at temperature 1 in rollouts that are to be trained"
    return None
