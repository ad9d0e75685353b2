"""Structured output: which tokens may come next, so that a completion has the requested form.

``completion`` writes the grammar of calls, ``guidance`` turns a structure into ``llguidance``'s own notation, ``check`` tries it in a
process that may die of it, and ``vocabulary`` compiles it for a model's tokens and walks it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

StructureKind = Literal["json", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Structure:
    """What form a completion must have. The kinds are those of vLLM's ``structured_outputs``."""

    kind: StructureKind
    text: str
    """A JSON schema, a regular expression, a JSON list of strings, or a grammar in Lark's notation."""

    def to_wire(self) -> dict[str, Any]:
        """As it stands in ``sampling_params.structured_outputs``."""
        return {self.kind: self.text if self.kind in ("regex", "grammar") else json.loads(self.text)}

    @classmethod
    def from_wire(cls, value: "Mapping[StructureKind, Any]") -> "Structure":
        """The inverse of ``to_wire``."""
        ((kind, content),) = value.items()
        return cls(kind, content if kind in ("regex", "grammar") else json.dumps(content, ensure_ascii=False))
