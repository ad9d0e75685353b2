"""Reasoning, words and tool calls, however the text arrives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_backend.tokens.notation import HERMES
from art_backend.tokens.parse import ParsedMessage, StopScanner, TextParser, overlap

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1.0, "b": "ü"}}\n</tool_call>'


def parse(text, sizes=(1000,), calls=True, thinking=False):
    parser = TextParser(HERMES if calls else None, thinking=thinking)
    message = ParsedMessage()
    at = 0
    while at < len(text):
        for size in sizes:
            message.extend(parser.feed(text[at : at + size]))
            at += size
    message.extend(parser.finish())
    return message.content, message.reasoning, [(c.name, json.loads(c.arguments)) for c in message.tool_calls]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  plain \n text ", ("  plain \n text ", "", [])),
        ("<think>\nhm\n</think>\n\nYes", ("Yes", "hm", [])),
        ("<think>never closed", ("", "never closed", [])),
        (CALL, ("", "", [("add", {"a": 1.0, "b": "ü"})])),
        (f"Let me see.\n{CALL}\n{CALL}\n", ("Let me see.", "", [("add", {"a": 1.0, "b": "ü"})] * 2)),
        (f"<think>x</think>{CALL}after", ("after", "x", [("add", {"a": 1.0, "b": "ü"})])),
        ('<tool_call>{"name": "f"}', ("", "", [("f", {})])),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", "", [("f", {"a": 1})])),
        ('Hi\n<tool_call>{"name": "f", "arguments": {"a": </tool_call>!',
         ('Hi\n<tool_call>{"name": "f", "arguments": {"a": </tool_call>!', "", [])),
        ("<tool_call>[1]</tool_call>", ("<tool_call>[1]</tool_call>", "", [])),
        ("<tool_call>{}</tool_call>", ("<tool_call>{}</tool_call>", "", [])),
        ("<tool_cal", ("<tool_cal", "", [])),
        *[(call, (call, "", [])) for value in ("NaN", "1e999", '"\\ud800"')
          if (call := f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>')],
        ("<think", ("<think", "", [])),
    ],
)  # fmt: skip
def test_messages_are_split(text, expected):
    assert parse(text) == expected
    assert parse(text, sizes=(1,)) == expected


def test_without_tools_a_call_is_text_and_a_prompt_may_open_the_reasoning():
    assert parse(CALL, calls=False) == (CALL, "", [])
    assert parse("hm</think>Yes", thinking=True) == ("Yes", "hm", [])


PIECES = st.sampled_from(["<", "think>", "<think>", "</think>", "<tool_call>", "</tool_call>", "a", " ", "\n",
                          '{"name": "f", "arguments": {}}', "{", "</", "<tool_"])  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_any_cut_of_any_text_reads_the_same(text, sizes):
    assert parse(text, sizes=sizes) == parse(text)
    assert parse(text, sizes=sizes, calls=False) == parse(text, calls=False)


@given(st.text("abAB", max_size=20), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.integers(1, 3))
def test_a_stop_scanner_finds_the_first_stop_string(text, stops, size):
    scanner = StopScanner(stops)
    given_out, at = "", 0
    while at < len(text) and not scanner.stopped:
        given_out += scanner.feed(text[at : at + size])
        at += size
    given_out += scanner.finish()
    ends = [text[:at].find(stop) for stop in stops if stop in text[:at]]
    assert scanner.stopped == bool(ends) == any(stop in text for stop in stops)
    assert given_out == (text[: min(ends)] if ends else text)


def test_overlap():
    assert [overlap("abc", "cd"), overlap("ab", "abab"), overlap("ab", "ab"), overlap("", "x")] == [1, 2, 0, 0]
