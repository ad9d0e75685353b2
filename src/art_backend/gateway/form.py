"""What form a request demands of its completion, and the structure that makes the engine keep to it.

A completion is reasoning (where the model thinks), then tool calls or words. ``response_format`` and its kin say what the words
must be; ``tool_choice`` says whether there must be calls, and of which tools; ``strict`` tools say what calls must be where there
are any. All of it becomes one grammar, in the notation that the model's own parser reads back.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from art_backend.errors import BadRequestError
from art_backend.tokens.call_grammar import CallGrammar, Function
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.notation import JSON_STYLE, quote
from art_backend.tokens.parse import END_THINK, THINK
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
        shaped = bool(called) and (forced or self.single or self.allowed is not None or self._is_strict(called))
        if self.words is None and not shaped:
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
        return _Grammar(renderer, prompt).write(self, called, forced=forced)

    def parts(self, tools: Sequence[dict[str, Any]] | None) -> Iterator[tuple[Structure, str]]:
        """The parts of the structure, each with the field that demanded it."""
        if self.words is not None:
            yield self.words, self.words_field
        for function in self._callable(tools):
            yield Structure("json", self.arguments(function)), self.schema_fields.get(function["name"], "tools")

    def arguments(self, function: dict[str, Any]) -> str:
        """The schema that a call's arguments must match, as JSON text."""
        strict = function["name"] in self.strict
        enforced = (self._forced or strict) and function.get("parameters")
        return schema_text(enforced or {"type": "object"}, strict=strict)

    @property
    def _forced(self) -> bool:
        return self.calls == "required"

    def _callable(self, tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Functions that a completion may call."""
        if not self.parse_calls:
            return []
        return [t["function"] for t in tools or () if self.allowed is None or t["function"]["name"] in self.allowed]

    def _is_strict(self, called: Sequence[dict[str, Any]]) -> bool:
        return any(function["name"] in self.strict for function in called)


class _Grammar:
    """Writes the grammar of completions of one prompt."""

    def __init__(self, renderer: ChatRenderer, prompt: Sequence[int]) -> None:
        self._renderer = renderer
        self._thinking = renderer.opens_thinking(prompt)
        self._thinks = self._thinking or renderer.mark(THINK) is not None
        self._rules: list[str] = []

    def write(self, form: Form, called: Sequence[dict[str, Any]], *, forced: bool) -> Structure:
        if form.words is not None and not called and (not self._thinks or form.words.kind == "grammar"):
            return form.words
        reasoning = ""
        if self._thinks:
            self._rules += [*self._until("thoughts", END_THINK), "gap: /\\n?\\n?/"]
            reasoning = "thoughts gap " if self._thinking else f"({self._literal(THINK)} thoughts gap)? "
        notation = self._renderer.notation
        if not called or notation is None:
            body = self._words(form)
        else:
            grammar = CallGrammar(notation, self._literal, self._until, _fits)
            self._rules += grammar.write([self._function(one, form, forced) for one in called], single=form.single)
            lead = f"({self._literal(notation.lead)})? " if notation.lead else ""
            body = f"{lead}{self._literal(notation.mark)} calls"
            if not forced and form.words is not None:
                body = f"({body} | {self._words(form)})"
            elif not forced:
                self._rules += [*self._until("head", notation.mark), "tail: /(.|\\n)*/"]
                body = "(tail | head calls)" if form.single else "(head calls)* tail"
        return Structure("grammar", "\n".join([f"start: {reasoning}{body}", *dict.fromkeys(self._rules)]))

    def _words(self, form: Form) -> str:
        assert form.words is not None
        match form.words.kind:
            case "json":
                self._rules.append(f"words: %json {form.words.text}")
            case "regex":
                self._rules.append(f"words: /{form.words.text.replace('/', chr(92) + '/')}/")
            case "choice":
                self._rules.append("words: " + " | ".join(map(quote, json.loads(form.words.text))))
            case "grammar":
                raise BadRequestError(
                    f"{form.words_field}: a grammar cannot be combined with tools; leave them out, or use a JSON schema.",
                    param=form.words_field,
                )
        return "words"

    @staticmethod
    def _function(declared: dict[str, Any], form: Form, forced: bool) -> Function:
        strict = declared["name"] in form.strict
        known = declared.get("parameters") if forced or strict else None
        return Function(declared["name"], known or {"type": "object"}, strict, whole=forced or strict)

    def _until(self, rule: str, mark: str) -> list[str]:
        """Rules for free text up to a mark. The first one ends it, however it is spelled."""
        special = next((i for i in self._renderer.split_marks(mark) if isinstance(i, int)), None)
        if special is not None and self._renderer.detokenizer.is_special(special):
            return [f"{rule}: free <[{special}]>", "free: /(.|\\n)*/"]
        pattern = re.escape(mark).replace("/", "\\/").replace("\n", "n")
        return [f"{rule}[lazy]: /(.|\\n)*{pattern}/"]

    def _literal(self, text: str) -> str:
        """A text as the parser knows it: marks are the tokens of that name where there are any."""
        pieces = self._renderer.split_marks(text)
        return " ".join(f"<[{piece}]>" if isinstance(piece, int) else quote(piece) for piece in pieces)


def _fits(schema: dict[str, Any], function: Function) -> str:
    """A rule's body for JSON that fits a schema."""
    return f"%json {schema_text(schema, strict=function.strict)}"


def schema_text(schema: dict[str, Any], *, strict: bool) -> str:
    """JSON text of a schema; where it is not strict, what cannot be enforced of it is left to the model."""
    return json.dumps({**schema, "x-guidance": {**JSON_STYLE, "lenient": not strict}}, ensure_ascii=False)
