"""Tools of OpenAI's responses: declared, chosen, called, and answered.

Beside functions there are tools that OpenAI's models were trained on. Those that the caller runs (``custom``, ``local_shell``, ``shell``
outside a container, ``apply_patch``, ``tool_search`` by the client) become functions, and a namespace's tools functions with a prefix.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema

from art_backend.gateway.answers import Alias
from art_backend.gateway.dialects.chat_messages import join_text
from art_backend.gateway.dialects.requests import take, wrong
from art_backend.gateway.dialects.toolbox import (
    Toolbox,
    describe,
    describe_custom,
    read_list,
    read_name,
    read_parameters,
    write_custom_input,
)
from art_backend.tokens.tool_calls import ParsedToolCall

_SERVED = {
    "code_interpreter",
    "computer",  # the caller runs these two, but answers with screenshots, which no model here can see
    "computer_use",
    "file_search",
    "image_generation",
    "mcp",
    "programmatic_tool_calling",
    "web_search",
}
"""Types of tools that are left out."""
_EDITION = re.compile(r"(_preview)?(_\d{4}_\d{2}_\d{2})?$")
"""The suffix that such a type may have."""


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _LocalShell(_Action):
    command: Annotated[list[str], Field(min_length=1)]
    env: dict[str, str] = {}
    timeout_ms: int | SkipJsonSchema[None] = None
    user: str | SkipJsonSchema[None] = None
    working_directory: str | SkipJsonSchema[None] = None


class _Shell(_Action):
    commands: Annotated[list[str], Field(min_length=1)]
    max_output_length: int | SkipJsonSchema[None] = None
    timeout_ms: int | SkipJsonSchema[None] = None


class _ApplyPatch(_Action):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | SkipJsonSchema[None] = None

    @model_validator(mode="after")
    def _needs_diff(self) -> "_ApplyPatch":
        if (self.diff is None) != (self.type == "delete_file"):
            raise ValueError("creating and updating need a diff")
        return self


@dataclass(frozen=True, slots=True)
class _Builtin:
    """A tool whose name and arguments OpenAI fixed."""

    holder: str
    """The field of a call item that holds the arguments."""
    arguments: type[_Action]
    description: str
    extra: Mapping[str, Any]
    """Further, constant content of that field."""


_BUILTINS = {
    "local_shell": _Builtin("action", _LocalShell, "Run a command on the user's machine.", {"type": "exec"}),
    "shell": _Builtin("action", _Shell, "Run shell commands in order.", {}),
    "apply_patch": _Builtin(
        "operation", _ApplyPatch, "Create, update or delete a file; a diff is in the V4A format.", {}
    ),
}
CALLS = {"function_call", "custom_tool_call", "tool_search_call", *(f"{kind}_call" for kind in _BUILTINS)}
"""Types of items that are calls of tools that the caller runs."""
OUTPUTS = {"tool_search_output", *(f"{kind}_output" for kind in CALLS - {"tool_search_call"})}
"""Types of items that are their results."""
_SERVED_CALLS = {
    "code_interpreter_call": ("code", "outputs"),
    "file_search_call": ("queries", "results"),
    "image_generation_call": ("revised_prompt", None),
    "mcp_call": ("arguments", "output"),
    "web_search_call": ("action", None),
}
"""Types of items that are calls of tools that OpenAI ran, with the fields of their arguments and of their results."""


def read_tools(box: Toolbox, tools: Any, where: str) -> None:
    """Put declared tools into ``box``.

    Raises:
        BadRequestError: A tool has a wrong shape or an unknown type; the error names it.
    """
    for i, tool in enumerate(read_list(tools, where)):
        _read_tool(box, tool, f"{where}.{i}", None)


def _read_tool(box: Toolbox, tool: dict[str, Any], where: str, namespace: str | None) -> None:
    kind = tool.get("type")
    if _is_served(tool):
        return
    if kind == "namespace":
        for i, inner in enumerate(read_list(tool.get("tools"), f"{where}.tools")):
            _read_tool(box, inner, f"{where}.tools.{i}", read_name(tool, where))
    elif kind == "function":
        name = read_name(tool, where)
        parameters = read_parameters(tool, "parameters", where)
        function = describe(join(namespace, name), tool.get("description") or "", parameters)
        alias = Alias("function", name, namespace) if namespace else None
        box.add(function, f"{where}.parameters", strict=tool.get("strict") is True, alias=alias)
    elif kind == "custom":
        name = read_name(tool, where)
        box.add(describe_custom(join(namespace, name), tool, where), where, alias=Alias("custom", name, namespace))
    elif kind == "tool_search":
        parameters = read_parameters(tool, "parameters", where)
        box.add(describe(kind, tool.get("description") or "", parameters), where, alias=Alias(kind, kind))
    elif kind in _BUILTINS:
        builtin = _BUILTINS[kind]
        schema = _plain(builtin.arguments.model_json_schema())
        box.add(describe(kind, builtin.description, schema), where, alias=Alias(kind, kind))
    else:
        raise wrong(f"{where}.type", f"tools of type {kind!r} are unknown; declare it as 'function' or 'custom'")


def _is_served(tool: dict[str, Any]) -> bool:
    """Whether only OpenAI could run a tool."""
    kind, place = tool.get("type") or "", tool.get("environment")
    if kind == "shell":
        return isinstance(place, dict) and place.get("type") != "local"
    return _EDITION.sub("", kind) in _SERVED or (kind == "tool_search" and tool.get("execution") != "client")


def join(namespace: str | None, name: str) -> str:
    """The name of a namespace's function."""
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name


def _plain(schema: Any) -> Any:
    """A schema without the titles and defaults that pydantic adds."""
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _plain(value) for key, value in content.items()} if name == "properties" else _plain(content)
        for name, content in schema.items()
        if name not in ("title", "default")
    }


def read_choice(choice: Any) -> Any:
    """``tool_choice`` with every tool that it names as a function."""
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        return choice
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        named = [read_choice(tool) for tool in read_list(choice["tools"], "tool_choice.tools") if not _is_served(tool)]
        return {**choice, "tools": named} if named else "none"
    kind = choice.get("type")
    if kind in _BUILTINS or kind == "tool_search":
        return {"type": "function", "name": kind}
    if kind in ("custom", "function") and isinstance(choice.get("name"), str):
        namespace = choice.get("namespace")
        return {"type": "function", "name": join(namespace if isinstance(namespace, str) else None, choice["name"])}
    return choice


def write_call(item_id: str, call: ParsedToolCall, alias: Alias | None) -> dict[str, Any]:
    """The item of a call, of the type that its tool was declared as; a function's where the arguments do not suit that type."""
    head = {"id": item_id, "call_id": call.id, "status": "completed"}
    if alias is not None and alias.kind in _BUILTINS:
        builtin = _BUILTINS[alias.kind]
        try:
            arguments = builtin.arguments.model_validate_json(call.arguments)
        except ValidationError:
            pass
        else:
            content = {**builtin.extra, **arguments.model_dump(exclude_none=True)}
            return {"type": f"{alias.kind}_call", **head, builtin.holder: content}
    elif alias is not None and alias.kind == "tool_search":
        return {"type": "tool_search_call", **head, "execution": "client", "arguments": json.loads(call.arguments)}
    elif alias is not None and alias.kind == "custom" and (text := write_custom_input(call)) is not None:
        return {"type": "custom_tool_call", **head, **_named(call, alias), "input": text}
    return {"type": "function_call", **head, **_named(call, alias), "arguments": call.arguments}


def _named(call: ParsedToolCall, alias: Alias | None) -> dict[str, Any]:
    if alias is None:
        return {"name": call.name}
    return {"name": alias.name, "namespace": alias.namespace} if alias.namespace else {"name": alias.name}


def read_call(item: dict[str, Any], where: str) -> dict[str, Any]:
    """The function that an item calls: its name, and its arguments as JSON.

    Raises:
        BadRequestError: A field has a wrong type; the error names it.
    """
    kind = item["type"]
    if kind == "tool_search_call":
        return {"name": "tool_search", "arguments": _dump(item.get("arguments") or {})}
    if kind in ("function_call", "custom_tool_call"):
        name = take(item, "name", str, where)
        if kind == "function_call":
            arguments = take(item, "arguments", str, where)
        else:
            arguments = _dump({"input": take(item, "input", str, where)})
        namespace = take(item, "namespace", str, where) if item.get("namespace") is not None else None
        return {"name": join(namespace, name), "arguments": arguments}
    name = kind.removesuffix("_call")
    builtin = _BUILTINS[name]
    content = take(item, builtin.holder, dict, where)
    given = {key: value for key, value in content.items() if value not in (None, {}) and key not in builtin.extra}
    return {"name": name, "arguments": _dump(given)}


def read_output(item: dict[str, Any], where: str) -> str:
    """Read the result of a call as text.

    Raises:
        BadRequestError: A field has a wrong type; the error names it.
    """
    output = item.get("output")
    match item["type"]:
        case "tool_search_output":
            return _dump(item.get("tools"))
        case "apply_patch_call_output":
            return "\n".join(filter(None, [take(item, "status", str, where), join_text(output, f"{where}.output")]))
        case "shell_call_output" if isinstance(output, list):
            return "\n".join(_read_chunk(chunk, f"{where}.output.{i}") for i, chunk in enumerate(output))
        case _:
            return join_text(output, f"{where}.output")


def _read_chunk(chunk: Any, where: str) -> str:
    """Read the output of a shell command, and how it ended unless it succeeded."""
    if not isinstance(chunk, dict):
        raise wrong(where, "must be an object")
    outcome = chunk.get("outcome")
    how = outcome if isinstance(outcome, dict) else {}
    code = how.get("exit_code")
    ending = "timeout" if how.get("type") == "timeout" else f"exit code {code}" if code else ""
    return "\n".join(filter(None, [take(chunk, "stdout", str, where), take(chunk, "stderr", str, where), ending]))


def read_served(item: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """A call that OpenAI ran, as a function's, and what came of it; ``None`` for an item that is no such call."""
    kind = item["type"]
    if kind not in _SERVED_CALLS:
        return None
    given, result = _SERVED_CALLS[kind]
    name, arguments = item.get("name"), item.get(given)
    if not isinstance(arguments, str) or kind != "mcp_call":
        arguments = _dump(arguments if isinstance(arguments, dict) else {given: arguments} if arguments else {})
    output = item.get(result) if result else None
    text = output if isinstance(output, str) else _dump(output) if output else ""
    return {"name": name if isinstance(name, str) else kind.removesuffix("_call"), "arguments": arguments}, text


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
