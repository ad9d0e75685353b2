"""Anthropic's tools: functions of the caller, and those whose name and input its models were trained on.

The caller runs ``bash_*``, ``text_editor_*``, ``memory_*`` and ``computer_*``: they become functions. Tools that Anthropic's servers run are
left out, and so are toolsets, whose results are screenshots.
"""

import re
from typing import Any

from art_backend.gateway.dialects.requests import wrong
from art_backend.gateway.dialects.toolbox import Toolbox, describe, read_list, read_name, read_parameters

_EDITION = re.compile(r"_\d{8}$")
"""The date after the name of a type."""
_SERVED = {
    "advisor",
    "browser_toolset",
    "code_execution",
    "computer_toolset",
    "mcp_toolset",
    "tool_search_tool_bm25",
    "tool_search_tool_regex",
    "web_fetch",
    "web_search",
}
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_PLACE = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _input(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_EDITING = {
    "path": _TEXT,
    "view_range": _PLACE,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
}
_BUILTINS = {
    "bash": (
        "Run a command in a persistent bash session; restart it if it hangs.",
        _input(command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor": (
        "View, create and edit text files.",
        _input(
            "command",
            "path",
            command=_one_of("view", "create", "str_replace", "insert"),
            **_EDITING,
            insert_text=_TEXT,
        ),
    ),
    "memory": (
        "Keep notes for later in files under /memories.",
        _input(
            "command",
            command=_one_of("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITING,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
    "computer": (
        "Use a screen, a mouse and a keyboard.",
        _input(
            "action",
            action=_TEXT,
            coordinate=_PLACE,
            start_coordinate=_PLACE,
            text=_TEXT,
            scroll_direction=_one_of("up", "down", "left", "right"),
            scroll_amount=_NUMBER,
            duration={"type": "number"},
        ),
    ),
}


def read_tools(tools: list[dict[str, Any]] | None) -> Toolbox:
    """Read the ``tools`` of a messages request.

    Raises:
        BadRequestError: A tool has a wrong shape or an unknown type; the error names it.
    """
    box = Toolbox()
    for i, tool in enumerate(read_list(tools, "tools")):
        where, kind = f"tools.{i}", _EDITION.sub("", tool.get("type") or "custom")
        if kind in _SERVED:
            continue
        if kind == "custom":
            description, schema = tool.get("description") or "", read_parameters(tool, "input_schema", where)
            if not schema:
                raise wrong(f"{where}.input_schema", "must be a non-empty object")
        elif kind in _BUILTINS:
            description, schema = _BUILTINS[kind]
            if kind == "computer":
                width, height = tool.get("display_width_px"), tool.get("display_height_px")
                description += f" The screen has {width} x {height} pixels."
        else:
            raise wrong(
                f"{where}.type",
                f"tools of type {tool['type']!r} are unknown; declare it as 'custom', with an input_schema",
            )
        function = describe(read_name(tool, where), description, schema)
        box.add(function, f"{where}.input_schema", strict=tool.get("strict") is True)
    return box
