"""What a server of the Model Context Protocol offers, and the scenarios that are made up for it."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, overload

from pydantic import BaseModel, ConfigDict, Field

Fields = Mapping[str, Any]


@dataclass
class MCPTool:
    """A tool of a server.

    >>> tool = MCPTool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "number"}}})
    >>> tool.to_tool_schema()["function"]["name"]
    'add'
    """

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
    """Something that a server lets be read.

    >>> MCPResource("file:///notes.txt", "notes", "What was said.").to_dict()["mime_type"] is None
    True
    """

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
    """A task for an agent that has the server's tools.

    >>> GeneratedScenario(task="Add 2 and 3.", difficulty=1).task
    'Add 2 and 3.'
    """

    model_config = ConfigDict(extra="forbid")

    task: str = Field(min_length=1)
    difficulty: int = Field(ge=1, le=5)
    """From 1, one call, to 5, many calls that build on each other."""


class GeneratedScenarioCollection(Sequence[GeneratedScenario]):
    """Scenarios, in order.

    >>> made = GeneratedScenarioCollection([GeneratedScenario(task=f"Task {n}.", difficulty=n) for n in (1, 2, 3)])
    >>> train, val = made.split(2)
    >>> len(train), val[0].task
    (2, 'Task 3.')
    """

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
