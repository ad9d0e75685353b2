"""Scenarios for agents that have the tools of a server of the Model Context Protocol; see ``art.compat.mcp``."""

from art.compat.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
    generate_scenarios,
    preview_scenarios,
)

__all__ = [
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "MCPResource",
    "MCPTool",
    "complete_task_tool",
    "generate_scenarios",
    "preview_scenarios",
]
