"""How a model writes tool calls, and how they are read back.

Templates differ in it: JSON between tags, a list after a mark, a function's name and tagged parameters, calls as Python writes them.
All of them are a few constant texts around names and arguments, which ``learning`` finds by rendering calls. The
grammar of forced calls is made of the same texts (``form``).
"""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from art_backend.tokens.tool_calls import ParsedToolCall, make_call

ID = "\x00"
"""Stands in a notation's texts where the id of the call is."""

_NAME = re.compile(r"[^\s<>(){}\[\]\"'=,]+")
_IGNORED_BETWEEN_OBJECTS = re.compile(r"[\s,;\[\]]*")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""Spelled as in JSON and as in Python, which templates write that format values by ``string``."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments that are written one by one, each a name and a value."""

    equals: str
    """Between name and value."""
    join: str
    """Between a value and the next name."""
    none: str
    """After the function's name, where there are no arguments: up to the call's end."""
    quoted: bool
    """Whether strings are in quotes. Otherwise they stand as they are, and other values as JSON."""
    true: str
    """Spelling of the constant."""


@dataclass(frozen=True, slots=True)
class Notation:
    """The texts around names and arguments. Calls of one turn are ``open call (separator call)* close``."""

    mark: str
    """Beginning of the calls in a completion; empty if calls are all that the message holds."""
    end: str
    """Their end; empty if they go on to the end of the turn."""
    open: str
    head: str
    """Before the name of a function."""
    middle: str
    """Between its name and the arguments."""
    tail: str
    """After the arguments."""
    separator: str | None
    """Between two calls; ``None`` where one call is the most."""
    close: str
    lead: str = ""
    """White space that may stand before all of it."""
    keys: tuple[str, str] | None = None
    """Of name and arguments, where a call is one JSON object."""
    parameters: Parameters | None = None
    """Format of the arguments; ``None``: one JSON object."""

    @property
    def bare(self) -> bool:
        """Whether only its form distinguishes a call from words."""
        return not self.mark

    @property
    def begins_with(self) -> str:
        """The first character of calls."""
        return (self.open + self.head)[0]

    @property
    def texts(self) -> str:
        """All constant texts, concatenated."""
        how = self.parameters
        between = [how.equals, how.join, how.none] if how else []
        return "\n".join([self.open, self.head, self.middle, self.tail, self.separator or "", self.close, *between])

    def spell_name(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False)[1:-1] if self.keys else name

    def read(self, body: str, tools: Sequence[dict[str, Any]] | None) -> tuple[list[ParsedToolCall], str]:
        """Read what stands between mark and end: whole calls, and the text from the first malformed one on.

        Args:
            tools: Those that were offered: where strings have no quotes, their schemas tell what is one.
        """
        if self.keys is not None:
            calls, rest = _read_objects(body, self.keys)
        elif self.parameters is not None and self.parameters.quoted:
            calls, rest = _read_python(body)
        else:
            calls, rest = self._read_texts(body, tools)
        if not calls:
            calls, rest = _read_objects(body, ("name", "arguments"))
        offered = {tool["function"]["name"] for tool in tools or ()}
        if self.bare and not offered.issuperset(call.name for call in calls):
            return [], body  # JSON that is an answer
        return calls, rest

    def _read_texts(self, body: str, tools: Sequence[dict[str, Any]] | None) -> tuple[list[ParsedToolCall], str]:
        """Names and arguments between the notation's own texts."""
        texts = _Texts(self.mark + body + self.end)
        texts.take(self.open)
        calls: list[ParsedToolCall] = []
        rest = body
        while (call := self._take_call(texts, tools)) is not None:
            calls.append(call)
            rest = texts.rest
            texts.take(self.separator or "")
        texts.go_back(rest)
        texts.take(self.close)
        return calls, texts.rest.removesuffix(self.end).strip()

    def _take_call(self, texts: "_Texts", tools: Sequence[dict[str, Any]] | None) -> ParsedToolCall | None:
        if not texts.take(self.head) or (name := texts.take_name()) is None:
            return None
        if self.parameters is None:
            arguments = texts.take_json() if texts.take(self.middle) else None
            texts.take(self.tail)
        else:
            arguments = self._take_parameters(texts, self.parameters, _properties(name, tools))
        return None if arguments is None else make_call(name, arguments)

    def _take_parameters(self, texts: "_Texts", how: Parameters, properties: dict[str, Any]) -> dict[str, Any] | None:
        arguments: dict[str, Any] = {}
        if texts.take(how.none):
            return arguments
        if not texts.take(self.middle):
            return None
        while True:
            key = texts.take_until(how.equals)
            value = texts.take_until(how.join, self.tail)
            if key is None or value is None:
                return None
            text, ended = value
            arguments[key[0]] = _read_value(text, properties.get(key[0]))
            if ended == 1:
                return arguments


HERMES = Notation(
    mark="<tool_call>",
    end="</tool_call>",
    open="",
    head='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    tail="}\n</tool_call>",
    separator="\n",
    close="",
    keys=("name", "arguments"),
)
"""The widespread one; of models whose template shows no other."""

_JSON = json.JSONDecoder()
_TRIES = 32
"""Closed brackets, from the last one, after which a cut list of calls is tried to end."""


class _Texts:
    """A text that is taken from its beginning. White space at the borders of what is asked for may be missing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def take(self, text: str) -> bool:
        found = re.compile(r"\s*" + loosely(text)).match(self._text, self._at)
        if found:
            self._at = found.end()
        return found is not None

    def take_name(self) -> str | None:
        found = _NAME.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def take_json(self) -> Any:
        """The value that stands here; ``None`` for malformed JSON."""
        try:
            value, self._at = _JSON.raw_decode(self._text, self._at)
        except (ValueError, RecursionError):
            return None
        return value

    def take_until(self, *texts: str) -> tuple[str, int] | None:
        """Take all up to the first of these texts, and say which of them it was."""
        pattern = "|".join(f"({loosely(text)})" for text in texts)
        found = re.compile(pattern).search(self._text, self._at)
        if found is None:
            return None
        taken, self._at = self._text[self._at : found.start()], found.end()
        return taken, (found.lastindex or 1) - 1

    @property
    def rest(self) -> str:
        """The text not yet taken."""
        return self._text[self._at :]

    def go_back(self, rest: str) -> None:
        """Give back what was taken since ``rest`` was the rest."""
        self._at = len(self._text) - len(rest)


def _read_objects(body: str, keys: tuple[str, str]) -> tuple[list[ParsedToolCall], str]:
    """JSON objects, in sequence or in a list."""
    calls: list[ParsedToolCall] = []
    at = _skip(body, 0)
    while at < len(body):
        try:
            value, end = _JSON.raw_decode(body, at)
        except (ValueError, RecursionError):
            break
        call = _read_object(value, keys)
        if call is None:
            break
        calls.append(call)
        at = _skip(body, end)
    return calls, body[at:]


def _read_python(body: str) -> tuple[list[ParsedToolCall], str]:
    """Calls as Python writes them; those before the last closed bracket where the list itself is not closed."""
    text = body.strip().removeprefix("[")
    ends = [text.rfind("]"), *(found.end() for found in reversed(list(re.finditer(r"\)", text))[-_TRIES:]))]
    for end in ends:
        try:
            tree = ast.parse(f"[{text[:end]}]", mode="eval").body if end >= 0 else None
            calls = [_read_python_call(item) for item in tree.elts] if isinstance(tree, ast.List) else []
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if calls and None not in calls:
            return [call for call in calls if call is not None], text[end:].strip().lstrip("],").strip()
    return [], body


def loosely(text: str) -> str:
    """A pattern for a text whose white space may be missing, and is free between words; ``ID`` is any id."""
    inner = text.strip()
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :] if inner else ""
    words = r"\s*".join(re.escape(word) for word in inner.split())
    return _optional(before) + words.replace(re.escape(ID), r"[\w.:-]+") + _optional(after)


def _optional(space: str) -> str:
    return "".join(f"{re.escape(character)}?" for character in space)


def _skip(body: str, at: int) -> int:
    found = _IGNORED_BETWEEN_OBJECTS.match(body, at)
    return found.end() if found else at


def _read_object(value: Any, keys: tuple[str, str]) -> ParsedToolCall | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get(keys[0]) if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        return None
    return make_call(name, next((value[key] for key in (keys[1], "arguments", "parameters") if key in value), None))


def _read_python_call(item: ast.expr) -> ParsedToolCall | None:
    if not isinstance(item, ast.Call) or item.args:
        return None
    arguments = {keyword.arg: _read_python_value(keyword.value) for keyword in item.keywords if keyword.arg}
    return make_call(ast.unparse(item.func), arguments) if len(arguments) == len(item.keywords) else None


def _read_python_value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_read_python_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {str(_read_python_value(k)): _read_python_value(v) for k, v in zip(keys, values, strict=True) if k}
        case _:
            return ast.literal_eval(node)


def _properties(name: str, tools: Sequence[dict[str, Any]] | None) -> dict[str, Any]:
    """The schemas of a function's parameters."""
    for tool in tools or ():
        if tool["function"]["name"] == name:
            properties = (tool["function"].get("parameters") or {}).get("properties")
            return properties if isinstance(properties, dict) else {}
    return {}


def is_text(schema: Any) -> bool:
    """Whether a value must be a string."""
    if not isinstance(schema, dict):
        return False
    choices = find_choices(schema)
    if choices and "type" not in schema:
        return all(isinstance(choice, str) for choice in choices)
    return schema.get("type") in ("string", ["string"])


def find_choices(schema: dict[str, Any]) -> list[Any] | None:
    """The only values that a schema allows; ``None`` if it lists none."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return choices if isinstance(choices, list) else None


def _read_value(text: str, schema: Any) -> Any:
    if is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _CONSTANTS.get(text, text)


def read_constants(name: str, arguments: Any, tools: Sequence[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Read Python constants among arguments that stayed text because they are not JSON; ``None`` without any."""
    if not isinstance(arguments, dict):
        return None
    schemas = _properties(name, tools)
    values = {
        k: _read_value(v, schemas.get(k)) if v in _CONSTANTS else v for k, v in arguments.items() if isinstance(v, str)
    }
    return {**arguments, **values} if any(not isinstance(value, str) for value in values.values()) else None
