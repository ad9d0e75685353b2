"""Learns a model's notation of tool calls from what its chat template writes."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from art_backend.tokens.bridging import ASKED
from art_backend.tokens.likeness import common_length
from art_backend.tokens.notation import ID, Notation, Parameters
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.setting import Message, attempt

SampleCall = tuple[str, dict[str, Any]]

FIRST, SECOND = "fn_alpha", "fn_beta"
_VALUE = "val_one"
_ARGUMENTS: dict[str, Any] = {"key_one": _VALUE}
CALL_IDS = ("idAlpha01", "idBeta002")
_JSON = json.JSONDecoder()
_TAG = r"<[^<>\s]*[>=]|\[[A-Z_]{2,}\]"

SAMPLE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": {"key_one": {"type": "string"}, "key_two": {}}},
        },
    }
    for name in (FIRST, SECOND)
]
"""The functions of the samples."""

SAMPLES: list[list[SampleCall]] = [
    [(FIRST, {})],
    [(FIRST, {"key_one": "it's <b>, [1]", "key_two": 7})],
    [(FIRST, {"key_one": "true", "key_two": True})],
    [(FIRST, {"key_two": {"z": [1, "x"]}})],
    [(FIRST, {"key_one": "a"}), (SECOND, {"key_one": "b"})],
]
"""Calls that a notation must read back; the last only where it knows several."""


def learn_notation(
    write: Callable[[Sequence[Message]], str],
    read: Callable[[Notation, str], ParsedMessage],
    stops: Sequence[str],
    added: Iterable[str],
) -> Notation | None:
    """Find the notation of calls in what a template writes; ``None`` if it is of no kind known here, or is not read back.

    Args:
        write: Writes a conversation with ``SAMPLE_TOOLS``, by the template.
        read: Reads a completion in a notation.
        stops: Texts that end a turn.
        added: Texts of the tokenizer's added tokens.
    """

    def spell(calls: Sequence[SampleCall]) -> str:
        """Write a message of calls by the template, up to the end of the turn."""
        words, text = write([ASKED, {"role": "assistant", "content": "~"}]), write([ASKED, _message(calls)])
        text = text[common_length(words, text) :]
        ends = [at for stop in stops if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text

    def find() -> Notation | None:
        notation = _find_notation(spell, list(added))
        if notation is None:
            return None
        samples = SAMPLES[: None if notation.separator is not None else -1]
        proven = all(_is_read(read(notation, spell(calls)), calls) for calls in samples)
        return notation if proven else None

    return attempt(find)


def demands_short_ids(write: Callable[[Sequence[Message]], str]) -> bool:
    """Whether a template refuses a call's id for its length."""

    def accepts(call_id: str) -> bool:
        message = _message([(FIRST, {})], [call_id])
        result = {"role": "tool", "content": "", "tool_call_id": call_id}
        return attempt(write, [ASKED, message, result]) is not None

    return not accepts("call_" + "0" * 24) and accepts("0" * 9)


def _message(calls: Sequence[SampleCall], ids: Sequence[str] = CALL_IDS) -> Message:
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for (name, arguments), call_id in zip(calls, ids, strict=False)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def _is_read(message: ParsedMessage, calls: list[SampleCall]) -> bool:
    read = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return read == calls and not message.content.strip()


def _find_notation(spell: Callable[[Sequence[SampleCall]], str], added: Sequence[str]) -> Notation | None:
    """Find the constant texts around names and arguments."""

    def write(*calls: SampleCall) -> str:
        text = spell(calls).strip()
        for call_id in CALL_IDS:
            text = text.replace(call_id, ID)
        return text

    one = write((FIRST, _ARGUMENTS))
    before, named, after = one.partition(FIRST)
    if not named:
        return None
    parameters, keys = None, None
    if found := _find_json(after):
        middle, last = after[: found[0]], after[found[1] :]
        keys = _find_keys(one)
    elif learned := _learn_parameters(before, write):
        middle, last, parameters = learned
    else:
        return None
    two = attempt(write, (FIRST, _ARGUMENTS), (SECOND, _ARGUMENTS)) or ""  # some know one call at a time
    open_, head, tail, separator, close = "", before, last, None, ""
    if two.startswith(before + FIRST) and SECOND in two and two.endswith(last):
        rest = two[len(before + FIRST) : two.index(SECOND)]
        found = _find_json(rest)
        between = rest[found[1] :] if found else rest.partition(_VALUE)[2][parameters.quoted if parameters else 0 :]
        open_, head, tail, separator, close = _share_out(before, between, last)
    if not open_ + head:
        return None
    if parameters is not None:
        parameters = replace(parameters, none=parameters.none.removesuffix(close))
    mark = _find_mark(open_ + head, added)
    end = _find_end(close or tail, added)
    whole = spell([(FIRST, _ARGUMENTS)])
    lead = whole[: len(whole) - len(whole.lstrip())]
    return Notation(mark, end, open_, head, middle, tail, separator, close, lead, keys, parameters)


def _share_out(before: str, between: str, last: str) -> tuple[str, str, str, str, str]:
    """Share out the texts around two calls: what opens all, each call's head and tail, what separates them, what closes all.

    A tag is not cut.
    """
    head = before[len(before) - common_length(before[::-1], between[::-1]) :]
    if (cut := before[: len(before) - len(head)]).count("<") > cut.count(">"):
        head = head[head.index(">") + 1 :]
    rest = between[: len(between) - len(head)]
    tail = last[: common_length(last, rest)]
    if tail.count("<") > tail.count(">"):
        tail = tail[: tail.rindex("<")]
    return before[: len(before) - len(head)], head, tail, rest[len(tail) :], last[len(tail) :]


def _find_json(text: str) -> tuple[int, int] | None:
    """Where the arguments stand as JSON."""
    for value, start, end in _objects(text):
        if value == _ARGUMENTS:
            return start, end
    return None


def _find_keys(text: str) -> tuple[str, str] | None:
    """The keys of name and arguments, if a call is one JSON object."""
    for value, _, _ in _objects(text.replace(ID, "0")):
        inner = value.get("function")
        holder: dict[str, Any] = inner if isinstance(inner, dict) else value
        name = next((key for key, held in holder.items() if held == FIRST), None)
        arguments = next((key for key, held in holder.items() if held == _ARGUMENTS), None)
        if name is not None and arguments is not None:
            return name, arguments
    return None


def _objects(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """All JSON objects in a text, and where they stand."""
    for found in re.finditer("{", text):
        try:
            value, end = _JSON.raw_decode(text, found.start())
        except ValueError:
            continue
        yield value, found.start(), end


def _learn_parameters(before: str, write: Callable[..., str]) -> tuple[str, str, Parameters] | None:
    """Arguments that are written one by one: what stands before and after all of them, and how each is written."""
    both = write((FIRST, {**_ARGUMENTS, "key_two": "val_two"}))
    pattern = "(.*?)".join((FIRST, "key_one", _VALUE, "key_two", "val_two"))
    found = re.fullmatch(re.escape(before) + pattern + "(.*)", both, re.DOTALL)
    if found is None:
        return None
    middle, equals, join, again, last = found.groups()
    quoted = equals[-1:] in ("'", '"') and join[:1] == equals[-1]
    if equals != again:
        return None
    if quoted:
        equals, join, last = equals[:-1], join[1:], last[1:]
    none = write((FIRST, {})).removeprefix(before + FIRST)
    true = "True" if "True" in write((FIRST, {"key_one": True})) else "true"
    return middle, last, Parameters(equals, join, none, quoted, true)


def _find_mark(text: str, added: Iterable[str]) -> str:
    """The beginning of a text by which calls are recognised: an added token, a tag or a word."""
    if token := _longest(added, text.startswith):
        return token
    found = re.match(_TAG + r"|\w[^\s{}\[\]\"'(]*", text)
    return found[0] if found else ""


def _find_end(text: str, added: Iterable[str]) -> str:
    """The end of a text by which the end of calls is recognised: an added token or a tag."""
    if token := _longest(added, text.endswith):
        return token
    found = re.search(r"<[^<>\s]+>$", text)
    return found[0] if found else ""


def _longest(added: Iterable[str], fits: Callable[[str], bool]) -> str:
    return max((token for token in added if token.strip() and fits(token)), key=len, default="")
