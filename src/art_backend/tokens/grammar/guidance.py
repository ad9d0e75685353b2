"""Structures in the notation of ``llguidance``. This module stays light: the process that tries structures imports it."""

import json
import re
from typing import Any

from llguidance import LLMatcher, grammar_from

from art_backend.tokens.grammar import Structure

JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "key_separator": ":[ ]?",
    "item_separator": ",[ ]?",
    "coerce_one_of": True,
}
"""How JSON is written: on one line, as models write their calls. Unlimited white space would let an untrained model write nothing
else. These options mean the same to the versions of llguidance that engines bring with them."""

MAX_BYTES = 256 * 2**10
"""Size of one structure's text."""

MAX_REFERENCES = 500
"""Definitions that one schema refers to."""

MAX_RULES = 2000
"""Rules of one grammar."""

MAX_CHOICES = 1000

_RULE = re.compile(r"^[ \t]*[?!]*\w+[^:\n\"/]*:", re.MULTILINE)


class StructureError(ValueError):
    """The structure is malformed, too complex, or no text of it can be written with this vocabulary."""


def check_size(structure: Structure) -> None:
    """Refuse a structure that is too large to be worth trying.

    Raises:
        StructureError: It exceeds a limit; the message names the limit.
    """
    size = len(structure.text.encode())
    if size > MAX_BYTES:
        raise StructureError(f"it has {size} bytes, the limit is {MAX_BYTES}; make it smaller")
    if structure.kind == "json" and (count := _count_references(structure.text)) > MAX_REFERENCES:
        raise StructureError(f"it refers to {count} definitions, the limit is {MAX_REFERENCES}; make it smaller")
    if structure.kind == "grammar" and (count := len(_RULE.findall(structure.text))) > MAX_RULES:
        raise StructureError(f"it has {count} rules, the limit is {MAX_RULES}; make it smaller")
    if structure.kind == "choice" and (count := len(_parse(structure.text))) > MAX_CHOICES:
        raise StructureError(f"it has {count} choices, the limit is {MAX_CHOICES}; offer fewer")


def compile_structure(structure: Structure) -> str:
    """Return a structure in llguidance's own notation.

    Raises:
        StructureError: It is not even JSON, where it should be.
    """
    try:
        if structure.kind == "json":
            return LLMatcher.grammar_from_json_schema(structure.text, defaults=JSON_STYLE)
        if structure.kind == "regex":
            return LLMatcher.grammar_from_regex(structure.text)
        if structure.kind == "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(quote, json.loads(structure.text))))
        return grammar_from("grammar", structure.text)
    except ValueError as error:
        raise StructureError(first_line(str(error))) from error


def schema_text(schema: dict[str, Any], *, strict: bool) -> str:
    """JSON text of a schema; where it is not strict, what cannot be enforced of it is left to the model."""
    return json.dumps({**schema, "x-guidance": {**JSON_STYLE, "lenient": not strict}}, ensure_ascii=False)


def quote(text: str) -> str:
    """Return a text as a literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0]


def _count_references(text: str) -> int:
    """Count the different targets of ``$ref`` in a schema."""
    targets: set[str] = set()
    values: list[Any] = [_parse(text)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if isinstance(target := value.get("$ref"), str):
                targets.add(target)
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return len(targets)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StructureError(f"it is not JSON: {error}") from error
