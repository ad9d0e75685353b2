"""The grammar of calls in a model's notation: the texts that the template writes, around names and arguments that fit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from art_backend.tokens.likeness import common_length
from art_backend.tokens.notation import ID, Notation, Parameters, find_choices, is_text

_ID_RULE = "/[a-zA-Z0-9]{9}/"
_FREE_KEY = "/[A-Za-z_][A-Za-z0-9_]*/"


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called."""

    name: str
    schema: dict[str, Any]
    """Of its arguments."""
    strict: bool
    whole: bool
    """Whether parameters that the schema requires must be there."""


class CallGrammar:
    """Writes the rules of ``calls``: all that follows the notation's mark.

    Args:
        literal: A text as the grammar spells it, with marks as tokens.
        until: Rules for free text up to a text, which ends it.
        fits: A rule's body for JSON that fits a schema, which is of a function's arguments or of one of them.
    """

    def __init__(
        self,
        notation: Notation,
        literal: Callable[[str], str],
        until: Callable[[str, str], list[str]],
        fits: Callable[[dict[str, Any], "Function"], str],
    ) -> None:
        self._notation = notation
        self._spell_literal = literal
        self._until = until
        self._fits = fits

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
            yield f"{rule}_json: {self._fits(function.schema, function)}"
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
            yield f"{rule}_json: {self._fits(schema, function)}"
        elif choices is not None:
            yield f"{rule}: ({' | '.join(self._literal(str(choice)) for choice in choices)}) {end}"
        else:
            yield from self._until(rule, stop)

    def _literal(self, text: str) -> str:
        return f" {_ID_RULE} ".join(self._spell_literal(piece) for piece in text.split(ID))
