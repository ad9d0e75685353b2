"""Model families that ``renderers`` has hand-written renderers for, recognised by what their templates write.

A family is known by its model's name on the hub. Under any other name (a local copy, a fine-tune, another publisher) it is the
family whose renderer gives the same ids as the model's own chat template does, for every one of the ``_PROBES``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from renderers import RendererConfig, config_from_name, create_renderer, template_field_names
from renderers.base import MODEL_RENDERER_MAP, Renderer
from transformers import PreTrainedTokenizerFast

from art_backend.tokens.setting import Message, Setting, SizedCache, Tools, apply_template, attempt

_RENDERER_BYTES = 2**17
"""What one renderer counts for, beside its template arguments."""

_KEPT_BYTES = 2**23
"""Renderers of one model to keep, one for each set of template arguments."""

_MARKS = {"gpt-oss": "<|channel|>"}
"""Tokens of families whose renderers download something before they look whether the model has them."""

_DATE = "conversation_start_date"
"""The template argument of families whose system message has a date."""


class Family:
    """The renderers of one family over one tokenizer, one for each set of template arguments."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: RendererConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self.argument_names = template_field_names(config)
        """Names of the template arguments that it knows."""
        self.plain = create_renderer(tokenizer, config)
        self._renderers: SizedCache[Renderer] = SizedCache(_KEPT_BYTES, lambda _: _RENDERER_BYTES)

    def renderer(self, arguments: Mapping[str, Any]) -> Renderer:
        """The renderer for these arguments. Raises ValueError for what the family does not accept."""
        if not arguments:
            return self.plain
        key = json.dumps(arguments, sort_keys=True).encode()
        return self._renderers.get(
            key, lambda: create_renderer(self._tokenizer, self._config, chat_template_kwargs=arguments)
        )

    def renderer_of(self, setting: Setting) -> Renderer:
        """The renderer for a conversation; where the family shows a date, that of its beginning."""
        if _DATE not in self.argument_names:
            return self.renderer(setting.arguments)
        return self.renderer({_DATE: setting.strftime("%Y-%m-%d"), **setting.arguments})


def find_family(tokenizer: PreTrainedTokenizerFast, name: str | None) -> Family | None:
    """The family of a model with this tokenizer and name; ``None`` if no hand-written renderer fits."""
    if (known := MODEL_RENDERER_MAP.get(name or "")) is not None:
        tokenizer.name_or_path = name
        return _make(tokenizer, known)
    if not tokenizer.chat_template:
        return None
    written = [_write(tokenizer, probe, setting) for setting in _MOMENTS for probe in _PROBES]
    marks = {token.content for token in tokenizer.added_tokens_decoder.values()}
    for candidate in dict.fromkeys(MODEL_RENDERER_MAP.values()):
        if candidate in _MARKS and _MARKS[candidate] not in marks:
            continue
        family = attempt(_make, tokenizer, candidate)
        if family is None:
            continue  # the vocabulary is not this family's
        for at in range(0, len(written), len(_PROBES)):
            if _agrees(family, written[at : at + len(_PROBES)], _MOMENTS[at // len(_PROBES)]):
                return family
    return None


def _make(tokenizer: PreTrainedTokenizerFast, name: str) -> Family:
    config: Any = config_from_name(name)
    return Family(tokenizer, config)


_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "What."}}, "required": ["at"]},
    },
}  # fmt: skip
_SYSTEM = {"role": "system", "content": "Be brief."}
_ASK = {"role": "user", "content": "Well?"}
_SAY = {"role": "assistant", "content": "Well.\n\nYes."}
_THINK = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
_ODD = {"at": "ü", "n": 1, "x": 1.5, "b": True, "z": None, "l": [1, {"k": "v"}]}


def _look(*ids: str, content: str = "", reasoning: str | None = None, arguments: Mapping[str, Any] = _ODD) -> Message:
    """A message that calls a tool, with ids that every template accepts."""
    calls = [{"id": i, "type": "function", "function": {"name": "look", "arguments": arguments}} for i in ids]
    message: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


def _seen(call_id: str) -> Message:
    return {"role": "tool", "name": "look", "content": "Seen.", "tool_call_id": call_id}


_A, _B = "aaaaaaaaa", "bbbbbbbbb"
_PROBES: list[tuple[list[Message], list[Message] | None, dict[str, Any]]] = [
    ([_ASK], None, {}),
    ([_ASK], None, {"enable_thinking": False}),
    ([_SYSTEM, _ASK], None, {}),
    ([_ASK], [_TOOL], {}),
    ([_SYSTEM, _ASK], [_TOOL, _TOOL], {}),
    ([_SYSTEM, _ASK, _SAY, _ASK], None, {}),
    ([_ASK, _THINK, _ASK, _THINK, _ASK], None, {}),
    ([_ASK, _look(_A, content="Let me look.", reasoning="Hm."), _seen(_A)], [_TOOL], {}),
    ([_ASK, _look(_A), _seen(_A), _look(_B, arguments={"at": "it"}), _seen(_B)], [_TOOL], {}),
    ([_ASK, _look(_A, _B, reasoning="Hm."), _seen(_A), _seen(_B), _THINK, _ASK], [_TOOL], {}),
]
"""Messages, tools and template arguments: all that templates are known to treat in ways of their own."""

_MOMENTS = (Setting(), Setting(began=datetime(2024, 7, 26).timestamp()))
"""Today, and the day that templates take for today where they do not know it."""


def _write(tokenizer: PreTrainedTokenizerFast, probe: tuple[Any, Any, Any], setting: Setting) -> list[int] | None:
    """Ids of what the chat template writes; ``None`` if it refuses."""
    messages, tools, arguments = probe
    setting = replace(setting, arguments=arguments)
    text = attempt(apply_template, tokenizer, messages, tools, setting, generation_prompt=True)
    return None if text is None else tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def _agrees(family: Family, written: Sequence[list[int] | None], setting: Setting) -> bool:
    """Whether a family's renderer gives the same ids, where the template does not refuse the messages."""
    for (messages, tools, arguments), expected in zip(_PROBES, written, strict=True):
        if expected is None or not arguments.keys() <= family.argument_names:
            continue
        if attempt(_render, family, messages, tools, Setting(arguments, setting.began)) != expected:
            return False
    return any(expected is not None for expected in written)


def _render(family: Family, messages: Sequence[Message], tools: Tools | None, setting: Setting) -> list[int]:
    renderer: Any = family.renderer_of(setting)
    return renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
