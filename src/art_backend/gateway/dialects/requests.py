"""The fields of a request: what would change the answer is honoured, or refused by name.

Each protocol's request is a model, whose fields are those that it honours; ``REFUSED`` lists what no model may leave out silently.
Everything else is accepted: labels and bookkeeping of the caller, hints that a model may follow or not (such as the effort of its
reasoning), and names that no public client knows.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from art_backend.errors import BadRequestError
from art_backend.gateway.sampling import Fields, SamplingFields

_OFF = (None, False, "", [], {})


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change the answer."""

    remedy: str
    """The sentence that says what to do instead."""
    neutral: tuple[Any, ...] = _OFF
    """Values that change nothing."""


_FORM = "constrain the answer with structured_outputs instead"
_TOKENS = "the tokens of each turn are in the service's control API (GET /api/v1/rollouts/{rollout})"
_LIMIT = "limit the answer in this protocol's own field (max_tokens, max_completion_tokens, max_output_tokens)"
_FORMAT = "use this protocol's own field (response_format, text.format, output_config.format)"
_LOGPROBS = "only sampled tokens have log-probabilities"

REFUSED: Mapping[str, Refused] = {
    # what is sampled
    "allowed_token_ids": Refused(_FORM),
    "bad_words": Refused(_FORM),
    "length_penalty": Refused("beam search is not supported; request n answers and choose one", (*_OFF, 1, 1.0)),
    "logit_bias": Refused(_FORM),
    "logits_processors": Refused(_FORM),
    "min_tokens": Refused("ask for a longer answer in the prompt, or " + _FORM, (*_OFF, 0)),
    "repetition_detection": Refused("set stop, or max_tokens"),
    "thinking_token_budget": Refused("limit the whole answer by max_tokens"),
    "use_beam_search": Refused("ask for n answers and choose"),
    "vllm_xargs": Refused("leave it out"),
    # what the prompt says
    "background": Refused("wait for the answer, or stream it"),
    "chat_template_kwargs": Refused("text completions apply no chat template; use chat completions"),
    "chat_template": Refused("save the tokenizer with that template, and register the model from there"),
    "conversation": Refused("use previous_response_id, or send the whole input"),
    "documents": Refused("put the documents into a message"),
    "mm_processor_kwargs": Refused("send text"),
    "prompt": Refused("send the prompt's text as input"),
    "suffix": Refused("this engine does not support fill-in-the-middle; describe the gap in the prompt"),
    "truncate_prompt_tokens": Refused("shorten the prompt before sending it"),
    # what the answer holds
    "audio": Refused("models here speak in text"),
    "echo": Refused("put the prompt before the answer yourself"),
    "include_reasoning": Refused("leave the answer's reasoning out of what you show", (None, True)),
    "include_stop_str_in_output": Refused("append the stop string yourself"),
    "modalities": Refused("models here speak in text", (*_OFF, ["text"])),
    "prompt_logprobs": Refused(_LOGPROBS, (None, False)),
    "return_token_ids": Refused(_TOKENS),
    "return_tokens_as_token_ids": Refused(_TOKENS),
    "skip_special_tokens": Refused(_TOKENS, (None, True)),
    "spaces_between_special_tokens": Refused(_TOKENS, (None, True)),
    "web_search_options": Refused("offer a function that searches, and run it yourself", (None,)),
    # what another field, or another protocol, calls something else
    "function_call": Refused("use tool_choice", (*_OFF, "none", "auto")),
    "functions": Refused("use tools"),
    "guided_whitespace_pattern": Refused("leave it out; JSON comes on one line"),
    "logprobs": Refused("use include=['message.output_text.logprobs'] in responses; messages have none"),
    "top_logprobs": Refused("use logprobs in completions; messages have none"),
    "max_completion_tokens": Refused(_LIMIT),
    "max_output_tokens": Refused(_LIMIT),
    "max_tokens": Refused(_LIMIT),
    "n": Refused("this protocol returns one answer per call", (*_OFF, 1)),
    "output_config": Refused(_FORMAT),
    "output_format": Refused(_FORMAT),
    "response_format": Refused(_FORMAT),
    "stop": Refused("use stop_sequences"),
    "add_generation_prompt": Refused("answers are begun in chat completions and messages", (None, True)),
    "continue_final_message": Refused("answers are begun in chat completions and messages"),
    "add_special_tokens": Refused(
        "put the tokens into the prompt as ids, with the completions protocol", (None, False)
    ),
}
"""Fields of the official clients and of vLLM that not every protocol honours. Where one is honoured, it is in the protocol's model."""


Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list that may be as long as a body; pydantic would describe each of its wrong items."""

StopStrings = Annotated[Texts, Field(max_length=4096)]
Stop = Annotated[str, Field(max_length=4096)] | StopStrings | None


class StructuredOutputs(Fields):
    """vLLM's field for a form of the answer; exactly one kind is set."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    json_: dict[str, Any] | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[Texts, Field(min_length=1)] | None = None
    grammar: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_kinds(cls, given: Any) -> Any:
        """Raise ValueError unless one of the kinds is set, and nothing else."""
        kinds = [field.alias or name for name, field in cls.model_fields.items()]
        if isinstance(given, dict):
            others = any(value not in (None, False) for name, value in given.items() if name not in kinds)
            if others or sum(given.get(kind) not in (None, False) for kind in kinds) != 1:
                raise ValueError(f"must be an object with one of {', '.join(kinds)}")
        return given

    def of_kind(self, kind: str) -> Any:
        """What is asked for of a kind; ``None`` or false if nothing is."""
        return self.json_ if kind == "json" else getattr(self, kind)


class Request(SamplingFields):
    """The fields that all protocols share."""

    model: str = Field(min_length=1)
    stream: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Texts, Field(min_length=1)] | None = None
    guided_grammar: str | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Read the body of a request.

        Raises:
            BadRequestError: A field has a wrong type or value, or cannot be honoured; the message names it.
        """
        check_fields(body, cls.model_fields)
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise _explain(error) from error


_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]},
    },
    "description": "A message of the protocol, with its further fields.",
}
Messages = Annotated[
    list[Annotated[dict[str, Any], WithJsonSchema(MESSAGE_SCHEMA)]], Field(min_length=1, fail_fast=True)
]


class ConversationRequest(Request):
    """The fields of the protocols whose prompts are messages."""

    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OpenAIRequest(Request):
    """The fields that chat completions and completions share."""

    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=128)
    stop: Stop = None
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a count of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))


def check_fields(body: Mapping[str, Any], honoured: Collection[str]) -> None:
    """Refuse what would change the answer and cannot be honoured.

    Raises:
        BadRequestError: A field is set to more than its neutral value; the message names it and what to do instead.
    """
    for name in body.keys() & (REFUSED.keys() - honoured):
        if not any(type(body[name]) is type(value) and body[name] == value for value in REFUSED[name].neutral):
            raise wrong(name, f"is not supported here; {REFUSED[name].remedy}")


_BRANCH = re.compile(r"^(str|int|dict)$|\W")
"""The name of a union's branch, which pydantic puts into the path of a field."""


_TYPES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
}
"""What a value should be, by pydantic's names of what it is not."""

_PROBLEMS = {
    **{name: f"must be {expected}" for name, expected in _TYPES.items()},
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "missing": "is required",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "too_short": "must not be empty",
    "value_error": "{error}",
}


def _explain(error: ValidationError) -> BadRequestError:
    """Name the first wrong field, and what it must be."""
    found = error.errors(include_url=False, include_input=False)
    first = [str(part) for part in found[0]["loc"]]
    field = first[: next((i for i, part in enumerate(first) if _BRANCH.search(part)), len(first))]
    expected: dict[str, None] = {}
    for one in found:
        path = [part for part in map(str, one["loc"]) if not _BRANCH.search(part)]
        if path[: len(field)] != field:
            continue
        if path != field or one["type"] not in _TYPES:  # of a union, the branch whose type the value has
            return wrong(".".join(path), _describe(one))
        expected[_TYPES[one["type"]]] = None
    return wrong(".".join(field), f"must be {' or '.join(expected)}")


def _describe(problem: Mapping[str, Any]) -> str:
    """Say in our words what is wrong with a value."""
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in problem.get("ctx", {}).items()
    }
    known = _PROBLEMS.get(problem["type"])
    return known.format_map(limits) if known else f"is wrong: {problem['msg']}"


def wrong(where: str, what: str) -> BadRequestError:
    """An error about one field."""
    return BadRequestError(f"{where}: {what}.", param=where)


_Kind = TypeVar("_Kind", str, dict[str, Any], list[Any])
_KINDS: dict[type, str] = {str: "a string", dict: "an object", list: "a list"}


def take(holder: Mapping[str, Any], name: str, kind: type[_Kind], where: str) -> _Kind:
    """A field of an object that must be of one type.

    Raises:
        BadRequestError: It is missing, or of another type.
    """
    value = holder.get(name)
    if not isinstance(value, kind):
        raise wrong(f"{where}.{name}", f"must be {_KINDS[kind]}")
    return value


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe the body of a route for OpenAPI."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(definitions[node["$ref"].rpartition("/")[2]])
        return {key: inline(value) for key, value in node.items() if key != "default"}

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline(schema)}}}}
