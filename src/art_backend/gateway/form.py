"""What form a request demands of its completion, and the structure that makes the engine keep to it.

A completion is reasoning (where the model thinks), then tool calls or words. ``response_format`` and its kin say what the words
must be; ``tool_choice`` says whether there must be calls, and of which tools; ``strict`` tools say what calls must be where there
are any. All of it becomes one grammar, in the notation that the model's own parser reads back.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from art_backend.errors import BadRequestError
from art_backend.gateway.parse import CALL, END_CALL, END_THINK, THINK
from art_backend.gateway.render import ChatRenderer
from art_backend.grammar.notation import JSON_STYLE, quote
from art_backend.inference.contract import Structure


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
        if called and not renderer.writes_json_calls:
            if self.words is None and not forced:
                return None  # nothing is promised where the model chooses
            raise BadRequestError(
                "tool_choice: calls cannot be enforced in this model's own notation; use 'auto' or 'none'.",
                param="tool_choice",
            )
        if self.words is not None and not forced and not renderer.speaks_plainly:
            raise BadRequestError(
                f"{self.words_field}: cannot be enforced in this model's own notation.", param=self.words_field
            )
        return _Grammar(renderer, prompt).write(self, called, forced=forced)

    def parts(self, tools: Sequence[dict[str, Any]] | None) -> Iterator[tuple[Structure, str]]:
        """What the structure is made of, each part with the field that demanded it."""
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
            reasoning = "thoughts gap " if self._thinking else f"({self._mark(THINK)} thoughts gap)? "
        if not called:
            body = self._words(form)
        else:
            self._write_calls(called, form)
            more = "" if form.single else ' ("\\n" open call)*'
            body = f"open call{more}"
            if not forced and form.words is not None:
                body = f"({body} | {self._words(form)})"
            elif not forced:
                self._rules += [*self._until("head", CALL), "tail: /(.|\\n)*/"]
                body = "(tail | head call)" if form.single else "(head call)* tail"
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

    def _write_calls(self, called: Sequence[dict[str, Any]], form: Form) -> None:
        self._rules += [f"open: {self._mark(CALL)}", "call: " + " | ".join(f"call_{i}" for i in range(len(called)))]
        for i, function in enumerate(called):
            begin = quote(f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": ')
            self._rules.append(f'call_{i}: "\\n"? {begin} arguments_{i} "}}" "\\n"? {self._mark(END_CALL)}')
            self._rules.append(f"arguments_{i}: %json {form.arguments(function)}")

    def _until(self, rule: str, mark: str) -> list[str]:
        """Rules for free text up to a mark. The first one ends it, however it is spelled."""
        token = self._renderer.mark(mark)
        if token is not None and self._renderer.detokenizer.is_special(token):
            return [f"{rule}: free <[{token}]>", "free: /(.|\\n)*/"]
        pattern = mark.replace("/", "\\/")
        return [f"{rule}[lazy]: /(.|\\n)*{pattern}/"]

    def _mark(self, text: str) -> str:
        """A mark as the parser knows it: the token of that name where there is one."""
        token = self._renderer.mark(text)
        return quote(text) if token is None else f"<[{token}]>"


def schema_text(schema: dict[str, Any], *, strict: bool) -> str:
    """JSON text of a schema; where it is not strict, what cannot be enforced of it is left to the model."""
    return json.dumps({**schema, "x-guidance": {**JSON_STYLE, "lenient": not strict}}, ensure_ascii=False)
