"""Scenarios for an agent with the tools of a server, made up by a model behind any OpenAI-compatible endpoint."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, ValidationError

from art.capture.scopes import no_capture
from art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool

ATTEMPTS = 3
"""How often a model is asked before its malformed answers are an error."""

_INSTRUCTIONS = """\
Below are the tools and resources of a server. Write exactly {count} tasks for an AI agent that has them. Each task stands alone, \
can be done with these tools, says what is wanted and not how, and ends in something that can be checked. Let the difficulties \
rise evenly from 1 (one call) to 5 (many calls that build on each other), and no two tasks be alike.{custom}

Tools:
{tools}

Resources:
{resources}

Answer with JSON that matches this schema, and nothing else:
{schema}"""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scenarios: list[GeneratedScenario]


async def generate_scenarios(
    tools: Sequence[MCPTool | Mapping[str, Any]],
    resources: Sequence[MCPResource | Mapping[str, Any]] = (),
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str = "openai/gpt-4.1-mini",
    generator_api_key: str | None = None,
    generator_base_url: str = "https://openrouter.ai/api/v1",
) -> GeneratedScenarioCollection:
    """Let a model write scenarios for a server's tools. An open trajectory records nothing of it.

    Args:
        tools: What the agent can call; dicts are read as ``MCPTool.from_dict`` does.
        resources: What it can read.
        show_preview: Print some of the scenarios.
        custom_instructions: What else the tasks should be like.
        generator_api_key: ``None`` takes ``OPENROUTER_API_KEY`` from the environment.
        generator_base_url: Of any endpoint that speaks OpenAI's protocol.

    Raises:
        ValueError: There is no tool or no key, or the model's answers could not be used, several times in a row.

    >>> tools = [MCPTool("add", "Adds two numbers.", {"type": "object"})]
    >>> made = await generate_scenarios(
    ...     tools, num_scenarios=1, generator_model="any", generator_base_url=endpoint, generator_api_key="key"
    ... )
    1. [difficulty 1] Add 2 and 3.
    """
    if not tools:
        raise ValueError("tools: the list is empty. Give at least one tool to write tasks for.")
    if num_scenarios < 1:
        raise ValueError(f"num_scenarios must be at least 1, not {num_scenarios}.")
    key = generator_api_key if generator_api_key is not None else os.environ.get("OPENROUTER_API_KEY")
    if key is None:
        raise ValueError("generator_api_key is missing: give it, or set OPENROUTER_API_KEY.")
    prompt = _INSTRUCTIONS.format(
        count=num_scenarios,
        custom=f"\n\n{custom_instructions}" if custom_instructions else "",
        tools=_listed(_tool(tool) for tool in tools),
        resources=_listed(_resource(resource) for resource in resources) or "none",
        schema=json.dumps(_Answer.model_json_schema()),
    )
    async with AsyncOpenAI(api_key=key, base_url=generator_base_url) as client:
        with no_capture():
            made = GeneratedScenarioCollection(await _ask(client, generator_model, prompt, num_scenarios))
    if show_preview:
        preview_scenarios(made)
    return made


def preview_scenarios(scenarios: Iterable[GeneratedScenario], num_preview: int = 5) -> None:
    """Print the first scenarios with their difficulties.

    >>> preview_scenarios([GeneratedScenario(task="Add 2 and 3.", difficulty=1)])
    1. [difficulty 1] Add 2 and 3.
    """
    for number, scenario in enumerate(list(scenarios)[:num_preview], 1):
        print(f"{number}. [difficulty {scenario.difficulty}] {scenario.task}")


async def _ask(client: AsyncOpenAI, model: str, prompt: str, count: int) -> list[GeneratedScenario]:
    schema = _Answer.model_json_schema()
    schema["properties"]["scenarios"] |= {"minItems": count, "maxItems": count}
    form = {"type": "json_schema", "json_schema": {"name": "scenarios", "strict": True, "schema": schema}}
    conversation: list[Any] = [{"role": "user", "content": prompt}]
    problem = ""
    for _ in range(ATTEMPTS):
        completion = await client.chat.completions.create(
            model=model,
            messages=conversation,
            response_format=cast(Any, form),
        )
        answer = completion.choices[0].message.content or ""
        try:
            found = _Answer.model_validate_json(answer).scenarios
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"It does not match the schema: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        else:
            if len(found) >= count:
                return found[:count]
            problem = f"It holds {len(found)} scenarios instead of {count}."
        objection = {"role": "user", "content": f"That answer cannot be used: {problem} Answer again, with all of it."}
        conversation = [conversation[0], {"role": "assistant", "content": answer}, objection]
    raise ValueError(f"The answers of {model} could not be used, {ATTEMPTS} times in a row. {problem}")


def _tool(tool: MCPTool | Mapping[str, Any]) -> dict[str, Any]:
    return (tool if isinstance(tool, MCPTool) else MCPTool.from_dict(tool)).to_dict()


def _resource(resource: MCPResource | Mapping[str, Any]) -> dict[str, Any]:
    return (resource if isinstance(resource, MCPResource) else MCPResource.from_dict(resource)).to_dict()


def _listed(items: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(f"- {json.dumps(item, ensure_ascii=False)}" for item in items)
