"""Scenarios for agents that have the tools of a server of the Model Context Protocol.

ART needs no package of the protocol for it: give the tools as your client lists them.
"""

from typing import Any

from art.mcp.generation import generate_scenarios, preview_scenarios
from art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool

__all__ = [
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "MCPResource",
    "MCPTool",
    "complete_task_tool",
    "generate_scenarios",
    "preview_scenarios",
]

complete_task_tool: dict[str, Any] = MCPTool(
    "complete_task",
    "Call this when the task is done, or when it cannot be done.",
    {
        "type": "object",
        "properties": {
            "summary": {"type": "string", "description": "What was done, and the answer if one was asked for."}
        },
        "required": ["summary"],
        "additionalProperties": False,
    },
).to_tool_schema()
"""A tool for ``tools`` with which an agent says that it has finished."""
