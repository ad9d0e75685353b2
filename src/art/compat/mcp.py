"""Scenarios for agents that have the tools of a server of the Model Context Protocol, written by a model.

ART needs no package of the protocol for it: give the tools as your client lists them.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast, overload

from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art.capture.scopes import no_capture

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


Fields = Mapping[str, Any]


@dataclass
class MCPTool:
    """A tool of a server."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of its arguments."""

    @classmethod
    def from_dict(cls, fields: Fields) -> Self:
        """A tool of ``to_dict``, or as a server lists it, with its schema as ``inputSchema``."""
        schema: dict[str, Any] = (
            fields.get("parameters") or fields.get("inputSchema") or {"type": "object", "properties": {}}
        )
        return cls(fields["name"], fields.get("description") or "", dict(schema))

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)

    def to_tool_schema(self) -> dict[str, Any]:
        """As chat completions take it in ``tools``."""
        return {"type": "function", "function": self.to_dict()}


@dataclass
class MCPResource:
    """Something that a server lets be read."""

    uri: str
    name: str
    description: str
    mime_type: str | None = None

    @classmethod
    def from_dict(cls, fields: Fields) -> Self:
        """A resource of ``to_dict``, or as a server lists it, with its type as ``mimeType``."""
        kind = fields.get("mime_type", fields.get("mimeType"))
        return cls(str(fields["uri"]), fields.get("name") or "", fields.get("description") or "", kind)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)


class GeneratedScenario(BaseModel):
    """A task for an agent that has the server's tools."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(min_length=1)
    difficulty: int = Field(ge=1, le=5)
    """From 1, one call, to 5, many calls that build on each other."""


class GeneratedScenarioCollection(Sequence[GeneratedScenario]):
    """Scenarios, in order."""

    def __init__(self, scenarios: Sequence[GeneratedScenario]) -> None:
        self.scenarios = list(scenarios)

    @overload
    def __getitem__(self, index: int) -> GeneratedScenario: ...

    @overload
    def __getitem__(self, index: slice) -> "GeneratedScenarioCollection": ...

    def __getitem__(self, index: int | slice) -> "GeneratedScenario | GeneratedScenarioCollection":
        found = self.scenarios[index]
        return found if isinstance(found, GeneratedScenario) else GeneratedScenarioCollection(found)

    def __len__(self) -> int:
        return len(self.scenarios)

    def __iter__(self) -> Iterator[GeneratedScenario]:
        return iter(self.scenarios)

    def shuffle(self, seed: int | None = None) -> "GeneratedScenarioCollection":
        """A copy in another order."""
        return GeneratedScenarioCollection(random.Random(seed).sample(self.scenarios, len(self.scenarios)))

    def split(self, first: int) -> "tuple[GeneratedScenarioCollection, GeneratedScenarioCollection]":
        """The first so many, and the others: for training and for validation."""
        return self[:first], self[first:]

    def difficulties(self) -> dict[int, int]:
        """How many scenarios there are of each difficulty."""
        return dict(sorted(Counter(scenario.difficulty for scenario in self).items()))

    def to_json(self) -> str:
        """As text that ``from_json`` reads."""
        return json.dumps([scenario.model_dump() for scenario in self], indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of ``to_json``."""
        return cls([GeneratedScenario.model_validate(one) for one in json.loads(text)])


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
    """Print the first scenarios with their difficulties."""
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
