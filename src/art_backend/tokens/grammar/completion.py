"""The grammar of a completion: reasoning where the model thinks, then calls in its notation, or words of a demanded form.

Calls are the texts that the template writes, around names and arguments that fit.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.guidance import quote, schema_text
from art_backend.tokens.likeness import common_length
from art_backend.tokens.notation import ID, Notation, Parameters, find_choices, is_text
from art_backend.tokens.parse import END_THINK, THINK
from art_backend.tokens.render import ChatRenderer

_ID_RULE = "/[a-zA-Z0-9]{9}/"
_FREE_KEY = "/[A-Za-z_][A-Za-z0-9_]*/"


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called."""

    name: str
    schema: dict[str, Any]
    """Of its arguments, as far as it is enforced."""
    strict: bool
    whole: bool
    """Whether parameters that the schema requires must be there."""


class CompletionGrammar:
    """Writes the grammar of completions of one prompt."""

    def __init__(self, renderer: ChatRenderer, prompt: Sequence[int]) -> None:
        self._renderer = renderer
        self._thinking = renderer.opens_thinking(prompt)
        self._thinks = self._thinking or renderer.mark(THINK) is not None

    def write_words(self, words: Structure) -> Structure:
        """Completions that are words of a demanded form."""
        if not self._thinks or words.kind == "grammar":
            return words
        return self._join("words", [f"words: {_spell_words(words)}"])

    def write_calls(
        self,
        notation: Notation,
        functions: Sequence[Function],
        words: Structure | None,
        *,
        forced: bool,
        single: bool,
    ) -> Structure:
        """Completions that call functions.

        Args:
            words: The form of a completion that calls none; not a grammar. ``None``: any words may stand before and between calls.
            forced: Whether there must be a call.
            single: Whether one call is the most.
        """
        rules = [*_Calls(self, notation).write(functions, single=single)]
        lead = f"({self.literal(notation.lead)})? " if notation.lead else ""
        body = f"{lead}{self.literal(notation.mark)} calls"
        if not forced and words is not None:
            rules.append(f"words: {_spell_words(words)}")
            body = f"({body} | words)"
        elif not forced:
            rules += [*self.until("head", notation.mark), "tail: /(.|\\n)*/"]
            body = "(tail | head calls)" if single else "(head calls)* tail"
        return self._join(body, rules)

    def _join(self, body: str, rules: Sequence[str]) -> Structure:
        """The whole grammar, with the reasoning that may come first."""
        reasoning = ""
        if self._thinks:
            rules = [*self.until("thoughts", END_THINK), "gap: /\\n?\\n?/", *rules]
            reasoning = "thoughts gap " if self._thinking else f"({self.literal(THINK)} thoughts gap)? "
        return Structure("grammar", "\n".join([f"start: {reasoning}{body}", *dict.fromkeys(rules)]))

    def until(self, rule: str, mark: str) -> list[str]:
        """Rules for free text up to a mark. The first one ends it, however it is spelled."""
        special = next((i for i in self._renderer.split_marks(mark) if isinstance(i, int)), None)
        if special is not None and self._renderer.detokenizer.is_special(special):
            return [f"{rule}: free <[{special}]>", "free: /(.|\\n)*/"]
        pattern = re.escape(mark).replace("/", "\\/").replace("\n", "n")
        return [f"{rule}[lazy]: /(.|\\n)*{pattern}/"]

    def literal(self, text: str) -> str:
        """A text as the parser knows it: marks are the tokens of that name where there are any."""
        pieces = self._renderer.split_marks(text)
        return " ".join(f"<[{piece}]>" if isinstance(piece, int) else quote(piece) for piece in pieces)


def _spell_words(words: Structure) -> str:
    """A rule's body for words of a form."""
    match words.kind:
        case "json":
            return f"%json {words.text}"
        case "regex":
            return f"/{words.text.replace('/', chr(92) + '/')}/"
        case "choice":
            return " | ".join(map(quote, json.loads(words.text)))
        case "grammar":
            raise ValueError("a grammar cannot be a part of another one")


class _Calls:
    """Writes the rules of ``calls``: all that follows the notation's mark."""

    def __init__(self, grammar: CompletionGrammar, notation: Notation) -> None:
        self._grammar = grammar
        self._notation = notation

    def write(self, functions: Sequence[Function], *, single: bool) -> list[str]:
        how = self._notation
        begin = (how.open + how.head)[len(how.mark) :]
        several = how.separator is not None and not single
        names = [f"{kind}_{i}" for kind in ("first", "next") for i in range(len(functions))]
        first, more = " | ".join(names[: len(functions)]), " | ".join(names[len(functions) :])
        rules = [f"calls: ({first}) {f'({more})* ' if several else ''}{self._literal(how.close)}"]
        middle = how.middle if how.parameters is None else ""
        for i, function in enumerate(functions):
            name = how.spell_name(function.name) + middle
            rules += self._write_arguments(f"arguments_{i}", function)
            rules.append(f"first_{i}: {self._literal(begin + name)} arguments_{i}")
            if several:
                rules.append(f"next_{i}: {self._literal((how.separator or '') + how.head + name)} arguments_{i}")
        return rules

    def _write_arguments(self, rule: str, function: Function) -> Iterator[str]:
        """Rules for arguments and the call's end."""
        how = self._notation
        if how.parameters is None:
            yield f"{rule}: {rule}_json {self._literal(how.tail)}"
            yield f"{rule}_json: {_fits(function.schema, function)}"
        else:
            yield from self._write_parameters(rule, function, how.parameters)

    def _write_parameters(self, rule: str, function: Function, how: Parameters) -> Iterator[str]:
        """One parameter after the other, in the schema's order; those that are not required may be missing."""
        tail, middle = self._notation.tail, self._notation.middle
        shared = tail[: common_length(how.join, tail)]
        stop = shared[: shared.find(">") + 1] or shared
        properties = function.schema.get("properties")
        required = set(function.schema.get("required") or ()) if function.whole else set[str]()
        known = list(properties.items()) if isinstance(properties, dict) else []
        join, end = how.join[len(stop) :], self._literal(tail[len(stop) :])
        if not known and function.schema.get("additionalProperties") is not False:
            any_one = f"{_FREE_KEY} {self._literal(how.equals)} {rule}_value"
            first, later = f"{self._literal(middle)} {any_one}", f"({self._literal(join)} {any_one})*"
            yield f"{rule}: {self._literal(how.none)} | {first} {later} {end}"
            yield from self._write_value(f"{rule}_value", {} if how.quoted else {"type": "string"}, stop, function, how)
            return
        yield f"{rule}: {rule}_first_0"
        yield f"{rule}_first_{len(known)}: {self._literal(how.none)}"
        yield f"{rule}_later_{len(known)}: {end}"
        for i, (key, schema) in enumerate(known):
            first = f"{self._literal(middle + key + how.equals)} {rule}_value_{i} {rule}_later_{i + 1}"
            later = f"{self._literal(join + key + how.equals)} {rule}_value_{i}"
            must = key in required
            yield f"{rule}_first_{i}: {first}" + ("" if must else f" | {rule}_first_{i + 1}")
            yield f"{rule}_later_{i}: {later if must else f'({later})?'} {rule}_later_{i + 1}"
            whole = {**schema, **{k: function.schema[k] for k in ("$defs", "definitions") if k in function.schema}}
            yield from self._write_value(f"{rule}_value_{i}", whole, stop, function, how)

    def _write_value(
        self, rule: str, schema: dict[str, Any], stop: str, function: Function, how: Parameters
    ) -> Iterator[str]:
        """A value, and what certainly follows it."""
        end = self._literal(stop)
        choices = find_choices(schema)
        if how.quoted and schema.get("type") == "boolean":
            yield f'{rule}: "{how.true}" | "{"False" if how.true == "True" else "false"}"'
        elif how.quoted or not is_text(schema):
            yield f"{rule}: {rule}_json {end}"
            yield f"{rule}_json: {_fits(schema, function)}"
        elif choices is not None:
            yield f"{rule}: ({' | '.join(self._literal(str(choice)) for choice in choices)}) {end}"
        else:
            yield from self._grammar.until(rule, stop)

    def _literal(self, text: str) -> str:
        return f" {_ID_RULE} ".join(self._grammar.literal(piece) for piece in text.split(ID))


def _fits(schema: dict[str, Any], function: Function) -> str:
    """A rule's body for JSON that fits a schema, which is of a function's arguments or of one of them."""
    return f"%json {schema_text(schema, strict=function.strict)}"
