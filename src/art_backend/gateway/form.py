"""What form a request demands of its completion, and the structure that makes the engine keep to it.

A completion is reasoning (where the model thinks), then tool calls or words. ``response_format`` and its kin say what the words
must be; ``tool_choice`` says whether there must be calls, and of which tools; ``strict`` tools say what calls must be where there
are any. All of it becomes one grammar, in the notation that the model's own parser reads back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from art_backend.errors import BadRequestError
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.completion import CompletionGrammar, Function
from art_backend.tokens.grammar.guidance import schema_text
from art_backend.tokens.render import ChatRenderer


@dataclass(frozen=True, slots=True)
class Form:
    """What a request demands. ``Form()`` demands nothing."""

    words: Structure | None = None
    words_field: str = ""
    """The field that demanded it."""
    calls: Literal["none", "auto", "required"] = "auto"
    allowed: frozenset[str] | None = None
    """Names of the tools that may be called; ``None``: all."""
    single: bool = False
    """Whether one call is the most."""
    strict: frozenset[str] = field(default_factory=frozenset[str])
    """Names of the tools whose arguments must match their schema although no call is required."""
    schema_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where each tool's schema stands in the request."""

    @property
    def parse_calls(self) -> bool:
        return self.calls != "none"

    def structure(
        self, renderer: ChatRenderer, prompt: Sequence[int], tools: Sequence[dict[str, Any]] | None
    ) -> Structure | None:
        """The structure of completions of a prompt; ``None`` if they are free.

        Raises:
            BadRequestError: This model writes its calls, or its words, in a way for which there is no grammar.
        """
        called, forced = self._callable(tools), self._forced
        restricted = self.single or self.allowed is not None or any(function.strict for function in called)
        if self.words is None and not (called and (forced or restricted)):
            return None
        notation = renderer.notation if called else None
        if called and not forced and self.words is None and (notation is None or notation.bare):
            return None  # nothing is promised where the model chooses
        if called and notation is None:
            raise BadRequestError(
                f"tool_choice: cannot force a call. {renderer.explain_calls()} Use 'auto' or 'none'.",
                param="tool_choice",
            )
        if self.words is not None and not forced and not renderer.speaks_plainly:
            raise BadRequestError(
                f"{self.words_field}: cannot be enforced in this model's own notation.", param=self.words_field
            )
        grammar = CompletionGrammar(renderer, prompt)
        if notation is None:
            assert self.words is not None
            return grammar.write_words(self.words)
        if self.words is not None and self.words.kind == "grammar" and not forced:
            raise BadRequestError(
                f"{self.words_field}: a grammar cannot be combined with tools; leave them out, or use a JSON schema.",
                param=self.words_field,
            )
        return grammar.write_calls(notation, called, self.words, forced=forced, single=self.single)

    def parts(self, tools: Sequence[dict[str, Any]] | None) -> Iterator[tuple[Structure, str]]:
        """The parts of the structure, each with the field that demanded it."""
        if self.words is not None:
            yield self.words, self.words_field
        for function in self._callable(tools):
            schema = schema_text(function.schema, strict=function.strict)
            yield Structure("json", schema), self.schema_fields.get(function.name, "tools")

    @property
    def _forced(self) -> bool:
        return self.calls == "required"

    def _callable(self, tools: Sequence[dict[str, Any]] | None) -> list[Function]:
        """Functions that a completion may call."""
        if not self.parse_calls:
            return []
        declared = [tool["function"] for tool in tools or ()]
        return [self._function(one) for one in declared if self.allowed is None or one["name"] in self.allowed]

    def _function(self, declared: dict[str, Any]) -> Function:
        strict = declared["name"] in self.strict
        enforced = self._forced or strict
        schema = declared.get("parameters") if enforced else None
        return Function(declared["name"], schema or {"type": "object"}, strict, whole=enforced)
