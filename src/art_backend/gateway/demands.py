"""Reads what a request demands of its completion's form, in the spellings of all protocols."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from art_backend.errors import BadRequestError
from art_backend.gateway.dialects.toolbox import Toolbox
from art_backend.gateway.form import Form, schema_text
from art_backend.tokens.grammar import Structure

Demand = tuple[Structure | None, str]
"""The form that words must have, if any, and the field that demands it."""

NOTHING: Demand = (None, "")
ANY_OBJECT = Structure("json", schema_text({"type": "object"}, strict=True))
_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_MODES: dict[str | None, Literal["none", "auto", "required"]] = {
    None: "auto",
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Whether calls are wanted."""

    mode: Literal["none", "auto", "required"]
    allowed: frozenset[str] | None = None
    """Names of the tools that may be called; ``None``: all."""
    single: bool = False
    """Whether it must be one call."""


def read_form(tool_choice: Any, tools: Toolbox, *, words: Demand, parallel: bool | None) -> Form:
    """Put together what a request demands.

    Args:
        words: What the words must look like, and the field that says so.
        parallel: Whether several calls may come at once; ``None`` is yes.

    Raises:
        BadRequestError: ``tool_choice`` is malformed or names an unknown tool.
    """
    calls = read_tool_choice(tool_choice, tools.fields)
    return Form(
        words=words[0],
        words_field=words[1],
        calls=calls.mode,
        allowed=calls.allowed,
        single=calls.single or parallel is False,
        strict=frozenset(tools.strict),
        schema_fields=tools.fields,
    )


def read_tool_choice(choice: Any, offered: Iterable[str]) -> Calls:
    """Read ``tool_choice``: a word, an object that names a tool, or one that lists the tools that may be called.

    Args:
        offered: Names of the request's tools.

    Raises:
        BadRequestError: It is malformed, or asks for a call of a tool that is not offered.
    """
    known = set(offered)
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in ("function", "tool"):
        calls = Calls("required", frozenset([_name(choice)]), single=True)
    elif kind == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        mode = inner.get("mode") if isinstance(inner, dict) else None
        if mode not in ("auto", "required") or not isinstance(inner.get("tools"), list):
            raise _wrong("needs a mode and a list of tools")
        calls = Calls(_MODES[mode], frozenset(_name(tool) for tool in inner["tools"]))
    elif kind is None or (isinstance(kind, str) and kind in _MODES):
        calls = Calls(_MODES[kind])
    else:
        raise _wrong("must be 'auto', 'none', 'required', or name a function")
    unknown = sorted((calls.allowed or set()) - known)
    if unknown:
        raise _wrong(f"names {unknown[0]!r}, which is not among the tools")
    if calls.mode == "required" and not known:
        raise _wrong("asks for a call, but there are no tools")
    return calls


def _name(tool: Any) -> str:
    holder = tool.get("function", tool) if isinstance(tool, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str) or not name:
        raise _wrong("must name a function")
    return name


def _wrong(what: str) -> BadRequestError:
    return BadRequestError(f"tool_choice: {what}.", param="tool_choice")


def read_format(value: Any, where: str, *, nested: bool) -> Demand:
    """Read ``response_format`` and its kin; return the structure and the field to blame for it.

    Args:
        nested: Whether name and schema of a ``json_schema`` stand in an object of that name.

    Raises:
        BadRequestError: It is malformed; the error names the field.
    """
    if value is None:
        return NOTHING
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return NOTHING
    if kind == "json_object":
        return ANY_OBJECT, where
    if kind == "grammar":
        if not isinstance(value.get("grammar"), str):
            raise BadRequestError(f"{where}.grammar: must be a string.", param=f"{where}.grammar")
        return Structure("grammar", value["grammar"]), f"{where}.grammar"
    if kind != "json_schema":
        raise BadRequestError(
            f"{where}.type: must be 'text', 'json_object', 'json_schema' or 'grammar'.", param=f"{where}.type"
        )
    holder, at = (value.get("json_schema"), f"{where}.json_schema") if nested else (value, where)
    if not isinstance(holder, dict):
        raise BadRequestError(f"{at}: must be an object.", param=at)
    schema = holder.get("schema")
    if not isinstance(schema, dict):
        raise BadRequestError(f"{at}.schema: must be an object.", param=f"{at}.schema")
    return Structure("json", schema_text(schema, strict=holder.get("strict") is True)), f"{at}.schema"


_GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
"""Older names of the kinds of ``structured_outputs``."""


def read_words(body: Mapping[str, Any], form: tuple[Any, str], *, nested: bool) -> Demand:
    """Read the form that the words of an answer must have, and the field that demands it.

    Args:
        form: The protocol's own field for a format, and its name; see ``read_format`` for ``nested``.

    Raises:
        BadRequestError: A field is malformed, or two of them are set; the error names the field.
    """
    structured, where = body.get("structured_outputs"), "structured_outputs"
    for name, kind in _GUIDED.items():
        if body.get(name) is not None:
            if structured is not None:
                raise BadRequestError(f"{name}: cannot be combined with {where}.", param=name)
            given = body[name]
            if kind == "json" and isinstance(given, str):
                given = _read_json(given, name)
            structured, where = {kind: given}, name
    formed = read_format(*form, nested=nested)
    if structured is None:
        return formed
    if formed[0] is not None:
        raise BadRequestError(f"{where}: cannot be combined with {form[1]}.", param=where)
    return read_structured_outputs(structured, where)


def _read_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{where}: must be a schema, or its JSON: {error}.", param=where) from error


def read_structured_outputs(value: Any, where: str = "structured_outputs") -> Demand:
    """Read vLLM's ``structured_outputs``, for which OpenAI has no field: a regular expression, a choice, a grammar.

    Raises:
        BadRequestError: It is malformed; the error names the field.
    """
    if value is None:
        return NOTHING
    given = {k: v for k, v in value.items() if v not in (None, False)} if isinstance(value, dict) else {}
    if len(given) != 1 or not given.keys() <= set(_KINDS):
        raise BadRequestError(f"{where}: must be an object with one of {', '.join(_KINDS)}.", param=where)
    ((kind, content),) = given.items()
    if kind == "json_object":
        return ANY_OBJECT, where
    at = where if where in _GUIDED else f"{where}.{kind}"
    texts = isinstance(content, list) and bool(content) and all(isinstance(item, str) for item in content)
    good, expected = {
        "json": (isinstance(content, dict), "a JSON schema, an object"),
        "regex": (isinstance(content, str), "a string"),
        "choice": (texts, "a non-empty list of strings"),
        "grammar": (isinstance(content, str), "a string"),
    }[kind]
    if not good:
        raise BadRequestError(f"{at}: must be {expected}.", param=at)
    if kind == "json" and isinstance(content, dict):
        return Structure("json", schema_text(content, strict=False)), at
    return Structure.from_wire({kind: content}), at
