"""Reads what a request demands of its completion's form, in the spellings of all protocols."""

import json
from typing import Any, Literal

from art_backend.gateway.dialects.requests import Request, take, wrong
from art_backend.gateway.dialects.toolbox import Toolbox
from art_backend.gateway.form import Form
from art_backend.tokens.grammar import Structure, StructureKind
from art_backend.tokens.grammar.guidance import schema_text

Demand = tuple[Structure | None, str]
"""The form that words must have, if any, and the field that demands it."""

_ANY_OBJECT = Structure("json", schema_text({"type": "object"}, strict=True))
_KINDS: tuple[StructureKind | Literal["json_object"], ...] = ("json", "json_object", "regex", "choice", "grammar")
_MODES: dict[str | None, Literal["none", "auto", "required"]] = {
    None: "auto",
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}


def read_form(choice: Any, tools: Toolbox, words: Demand, *, parallel: bool | None) -> Form:
    """Put together what a request demands.

    Args:
        choice: ``tool_choice``: a word, an object that names a tool, or one that lists the tools that may be called.
        words: What the words must look like, and the field that says so.
        parallel: Whether several calls may come at once; ``None`` is yes.

    Raises:
        BadRequestError: ``tool_choice`` is malformed, or asks for a call of a tool that the request does not offer.
    """
    kind = choice.get("type") if isinstance(choice, dict) else choice
    allowed: frozenset[str] | None = None
    if kind in ("function", "tool", "custom"):
        mode, allowed = "required", frozenset([_name(choice)])
    elif kind == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        mode = inner.get("mode") if isinstance(inner, dict) else None
        if mode not in ("auto", "required") or not isinstance(inner.get("tools"), list):
            raise wrong("tool_choice", "needs a mode and a list of tools")
        allowed = frozenset(_name(tool) for tool in inner["tools"])
    elif kind is None or (isinstance(kind, str) and kind in _MODES):
        mode = _MODES[kind]
    else:
        raise wrong("tool_choice", "must be 'auto', 'none', 'required', or name a function")
    if unknown := sorted((allowed or set()) - tools.fields.keys()):
        raise wrong("tool_choice", f"names {unknown[0]!r}, which is not one of the tools")
    if mode == "required" and not tools.fields:
        raise wrong("tool_choice", "requires a tool call, but the request has no tools")
    return Form(
        words=words[0],
        words_field=words[1],
        calls=mode,
        allowed=allowed,
        single=parallel is False or kind in ("function", "tool", "custom"),
        strict=frozenset(tools.strict),
        schema_fields=tools.fields,
    )


def _name(tool: Any) -> str:
    holder = tool.get("function", tool.get("custom", tool)) if isinstance(tool, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str) or not name:
        raise wrong("tool_choice", "must name a function")
    return name


def read_words(request: Request, form: Any, form_field: str) -> Demand:
    """Read the form that the words of an answer must have, and the field that demands it.

    Args:
        form: The protocol's own field for a format, with its name.

    Raises:
        BadRequestError: A field is malformed, or two of them are set; the error names the field.
    """
    demands = [_read_format(form, form_field)] if form is not None else []
    demands += _read_structured_outputs(request)
    demands = [demand for demand in demands if demand[0] is not None]
    if len(demands) > 1:
        raise wrong(demands[1][1], f"cannot be combined with {demands[0][1]}")
    return demands[0] if demands else (None, "")


def _read_format(form: Any, where: str) -> Demand:
    """Read ``response_format`` and its kin; return the structure and the field to blame for it."""
    match form.get("type") if isinstance(form, dict) else None:
        case "text":
            return None, where
        case "json_object":
            return _ANY_OBJECT, where
        case "grammar":
            return Structure("grammar", take(form, "grammar", str, where)), f"{where}.grammar"
        case "json_schema":
            if where == "response_format":  # where name and schema stand in an object of their own
                form, where = take(form, "json_schema", dict, where), f"{where}.json_schema"
            text = schema_text(take(form, "schema", dict, where), strict=form.get("strict") is True)
            return Structure("json", text), f"{where}.schema"
        case _:
            raise wrong(f"{where}.type", "must be 'text', 'json_object', 'json_schema' or 'grammar'")


def _read_structured_outputs(request: Request) -> list[Demand]:
    """Read the structures that a request asks for in vLLM's words: a regular expression, a choice, a grammar."""
    demands: list[Demand] = []
    for kind in _KINDS:
        for value, where in (
            (request.structured_outputs and request.structured_outputs.of_kind(kind), f"structured_outputs.{kind}"),
            (getattr(request, f"guided_{kind}", None), f"guided_{kind}"),
        ):
            if value not in (None, False):
                demands.append(_read_structure(kind, value, where))
    return demands


def _read_structure(kind: StructureKind | Literal["json_object"], value: Any, where: str) -> Demand:
    if kind == "json_object":
        return _ANY_OBJECT, where
    if kind != "json":
        return Structure.from_wire({kind: value}), where
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise wrong(where, f"must be a schema, or its JSON: {error}") from error
    if not isinstance(value, dict):
        raise wrong(where, "must be a JSON schema, an object")
    return Structure("json", schema_text(value, strict=False)), where
