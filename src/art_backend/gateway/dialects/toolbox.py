"""The tools of a request as functions, whatever its protocol calls them.

Chat templates know one kind of tool, the function. What the caller runs becomes one, and its calls go back in the caller's words;
what only the protocol's own service could run is left out, since nothing here could answer its calls.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from art_backend.gateway.answers import Alias
from art_backend.gateway.dialects.requests import take, wrong
from art_backend.tokens.tool_calls import ParsedToolCall


@dataclass(slots=True)
class Toolbox:
    """The functions of a request."""

    functions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """In the format of chat completions."""
    aliases: dict[str, Alias] = field(default_factory=dict[str, Alias])
    strict: set[str] = field(default_factory=set[str])
    """Names of functions whose arguments must match their schema."""
    fields: dict[str, str] = field(default_factory=dict[str, str])
    """Where each function's schema stands in the request."""

    def add(self, tool: dict[str, Any], where: str, *, strict: bool = False, alias: Alias | None = None) -> None:
        """Add a function, unless it is here already.

        Args:
            where: The field of its schema.
        """
        name = tool["function"]["name"]
        if tool not in self.functions:
            self.functions.append(tool)
        self.fields[name] = where
        if strict:
            self.strict.add(name)
        if alias is not None:
            self.aliases[name] = alias


def describe(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """A function as chat completions spell it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TEXT_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The schema of a custom tool: OpenAI's name for a tool whose input is plain text."""


def describe_custom(name: str, tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A custom tool as a function. The model reads the grammar of its input; nothing enforces it.

    Raises:
        BadRequestError: Its description or its grammar has a wrong type; the error names it.
    """
    description = take(tool, "description", str, where) if tool.get("description") is not None else ""
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        grammar = (
            take(form, "grammar", dict, f"{where}.format") if "grammar" in form else form
        )  # chat completions nest it
        description += f"\n\nThe input must match this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
    return describe(name, description.strip(), TEXT_INPUT)


def write_custom_input(call: ParsedToolCall) -> str | None:
    """The text that a custom tool is called with; ``None`` where the model gave it other arguments."""
    arguments = json.loads(call.arguments)
    text = arguments.get("input")
    return text if len(arguments) == 1 and isinstance(text, str) else None


def read_list(tools: Any, where: str) -> list[dict[str, Any]]:
    """A list of tools; null is empty.

    Raises:
        BadRequestError: It is not a list of objects with a type.
    """
    if not isinstance(tools, list | None):
        raise wrong(where, "must be a list")
    for i, tool in enumerate(tools or ()):
        if not isinstance(tool, dict) or not isinstance(tool.get("type", ""), str | None):
            raise wrong(f"{where}.{i}", "must be an object with a type")
    return tools or []


def read_name(tool: Mapping[str, Any], where: str) -> str:
    """Raises BadRequestError where a tool has no name."""
    if not take(tool, "name", str, where):
        raise wrong(f"{where}.name", "must not be empty")
    return tool["name"]


def read_parameters(tool: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The schema of a tool. Raises BadRequestError where it is neither an object nor null."""
    return take(tool, name, dict, where) if tool.get(name) is not None else {}
