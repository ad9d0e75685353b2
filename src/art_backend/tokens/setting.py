"""The inputs of a chat template beside messages and tools: fixed where a conversation begins, and kept with its tree.

Templates may ask for the time, or for a random number. A conversation that goes on after midnight, or after a restart, has
to be rendered as it began: so both are functions of the moment at which it did.
"""

import hashlib
import inspect
import random
import re
import string
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Generic, ParamSpec, TypeVar

import orjson
from jinja2 import Environment, meta
from transformers import PreTrainedTokenizerFast

P = ParamSpec("P")
T = TypeVar("T")

Message = dict[str, Any]
"""A normalised chat message: ``role``, ``content`` (a string), and where they apply ``tool_calls``, ``tool_call_id``,
``reasoning_content``."""

Tools = Sequence[dict[str, Any]]


class Toolset(list[dict[str, Any]]):
    """The tools of one conversation, serialised once however often they are looked up."""

    @classmethod
    def of(cls, tools: Tools | None) -> "Toolset":
        """The tools themselves where they are a toolset already."""
        return tools if isinstance(tools, cls) else cls(tools or ())

    @cached_property
    def text(self) -> bytes:
        """JSON with sorted keys."""
        return orjson.dumps(self, option=orjson.OPT_SORT_KEYS)

    def digest(self, arguments: Mapping[str, Any] | None) -> bytes:
        """Name the conversations with these tools and template arguments."""
        text = self.text
        if arguments:
            text = b"[%b,%b]" % (text if self else b"null", orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS))
        return hashlib.blake2b(text, digest_size=16).digest()


class SizedCache(Generic[T]):
    """Values by key: the ones used last, up to a size. Safe to use from any thread.

    Args:
        limit: Bytes to keep; the newest value stays even if it is larger.
        weigh: Bytes of a value, without its key.
    """

    def __init__(self, limit: int, weigh: Callable[[T], int]) -> None:
        self._limit = limit
        self._weigh = weigh
        self._values: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: bytes, make: Callable[[], T]) -> T:
        """Return the value under ``key``; make it if it is not here."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        size = len(key) + self._weigh(value)
        with self._lock:
            if key not in self._values:
                self._values[key] = value, size
                self._size += size
            while self._size > self._limit and len(self._values) > 1:
                self._size -= self._values.popitem(last=False)[1][1]
        return value


_RESERVED = {
    *inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters,
    *PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES,
    "messages", "raise_exception", "strftime_now",
} - {"documents"}  # fmt: skip
"""Names that are not the caller's to give."""

_GENERATION = re.compile(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}")
"""Marks of what the assistant says, which only transformers knows."""

_MOMENT = "conversation_began"
"""Template data: the moment at which the conversation began, by ``strftime`` directive (without its ``%``)."""

_FLAGS = ("-", "_", "0", "^", "#")
_DIRECTIVES = [flag + letter for flag in ("", *_FLAGS) for letter in string.ascii_letters]

_STRFTIME_NOW = (
    "{%- macro strftime_now(format) -%}"
    "{%- for text in format.split('%%') -%}{{- '' if loop.first else '%' -}}"
    "{%- for part in text.split('%') -%}{%- if loop.first -%}{{- part -}}{%- else -%}"
    f"{{%- set directive = part[:2] if part[:1] in {_FLAGS} else part[:1] -%}}"
    f"{{{{- {_MOMENT}[directive] if directive in {_MOMENT}"
    " else raise_exception('strftime_now: unknown directive %' ~ directive) -}}{{- part[directive | length:] -}}"
    "{%- endif -%}{%- endfor -%}{%- endfor -%}{%- endmacro %}\n"
)
"""Replaces the template's ``strftime_now``, which knows only the present. A macro, because templates receive data alone.

Its own line, which transformers' ``trim_blocks`` removes: what follows begins a line, as ``lstrip_blocks`` looks for.
"""

_chance = threading.Lock()


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of one conversation."""

    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The request's ``chat_template_kwargs``."""
    began: float = field(default_factory=lambda: time.time())
    """Unix time: what templates take for the present, and the seed of their random numbers."""

    def strftime(self, form: str) -> str:
        """Format the moment at which the conversation began."""
        return datetime.fromtimestamp(self.began).strftime(form)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Let Jinja's ``random``, which draws from Python's own generator, give the same for the same conversation."""
        with _chance:
            state = random.getstate()
            random.seed(self.began)
            try:
                yield
            finally:
                random.setstate(state)


def apply_template(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    tools: Tools | None,
    setting: Setting,
    *,
    generation_prompt: bool,
) -> str:
    """Write messages by the tokenizer's chat template, at the moment of the setting. Raises whatever the template raises."""
    template, arguments = tokenizer.get_chat_template(tools=tools), dict(setting.arguments)  # pyright: ignore[reportArgumentType]
    if "strftime_now" in template:
        template, arguments[_MOMENT] = _STRFTIME_NOW + template, _format_moment(setting.began)
    text = tokenizer.apply_chat_template(
        messages,  # pyright: ignore[reportArgumentType]
        tools,  # pyright: ignore[reportArgumentType]
        chat_template=template,
        tokenize=False,
        add_generation_prompt=generation_prompt,
        **arguments,
    )
    if not isinstance(text, str):
        raise TypeError(f"the chat template gave {type(text).__name__}")
    return text


@lru_cache(maxsize=64)
def _format_moment(began: float) -> dict[str, str]:
    """A moment by ``strftime`` directive; a lone ``%`` is itself."""
    values = datetime.fromtimestamp(began).strftime("\x1f".join("%" + directive for directive in _DIRECTIVES))
    return {"": "%", **dict(zip(_DIRECTIVES, values.split("\x1f"), strict=True))}


def attempt(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what a template or its hand-written renderer makes; ``None`` if it refuses, with whatever its author raises."""
    try:
        return ask(*args, **kwargs)
    except Exception:  # noqa: BLE001  the code is the model's, not ours
        return None


def find_argument_names(template: str) -> frozenset[str]:
    """Names that a chat template leaves to the caller."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    read = meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template)))
    return frozenset(read - environment.globals.keys() - _RESERVED)
