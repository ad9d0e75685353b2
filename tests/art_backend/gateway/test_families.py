"""Families are recognised by what their templates write, and recognised or not, a tool cycle is one row."""

import re
from importlib import resources

import pytest
from tests.art_backend.gateway.conftest import start_gateway
from tests.support.tiny import build_tiny_tokenizer

from art_backend.tokens import families
from art_backend.tokens.families import find_family

HERMES = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
CALL = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def published(name):
    """A chat template as its family publishes it, from TRL's collection, over a tiny vocabulary that has its tokens."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.unk_token = None
    template = resources.files("trl").joinpath(f"chat_templates/{name}.jinja").read_text()
    tokenizer.add_tokens([*HERMES, *sorted(set(re.findall(r"<\|[\w]+\|>", template)))])
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("qwen3", "Qwen3Renderer"),
        ("qwen3_vl", "Qwen3VLRenderer"),
        ("qwen3_5_think", "Qwen35Renderer"),
        ("qwen3_6", "Qwen36Renderer"),
        ("qwen3_8", "Qwen38Renderer"),
        ("nemotron_3_nano", "Nemotron3Renderer"),
    ],
)
@pytest.mark.parametrize("name", [None, "me/my-fine-tune", "/models/local"])
def test_a_family_is_known_by_its_template(template, family, name):
    found = find_family(published(template), name)
    assert type(found.plain).__name__ == family


def test_no_family_is_tried_that_would_download_something(monkeypatch):
    tried = []

    def note(tokenizer, name):
        tried.append(name)
        raise AssertionError

    monkeypatch.setattr(families, "_make", note)
    assert find_family(published("qwen2_5"), None) is None
    assert "qwen3" in tried and "gpt-oss" not in tried


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3_instruct_2507"])
def test_what_a_family_writes_otherwise_is_another(template):
    """Both are nearly Qwen3's."""
    assert find_family(published(template), None) is None
    changed = published("qwen3")
    changed.chat_template = changed.chat_template.replace("# Tools", "# Functions")
    assert find_family(changed, None) is None


@pytest.mark.parametrize("change", ["", "{{- '' }}", "{{- 'Note.' }}"], ids=["same", "same ids", "unknown"])
async def test_a_tool_cycle_is_one_row_under_any_name(tmp_path, change):
    tokenizer = published("qwen3")
    tokenizer.chat_template = change + tokenizer.chat_template
    async with start_gateway(tmp_path, tokenizer, family=find_family(tokenizer, "unsloth/x")) as gateway:
        assert (gateway.renderer._family is None) == ("Note" in change)
        client, rollout = gateway.new_client()
        gateway.engine.say(CALL, CALL, "<think>\nhm\n</think>\n\nDone.", "Bye.")
        messages = [{"role": "user", "content": "?"}]
        for _ in range(3):
            said = (await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])).choices[0].message
            messages.append(said)
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in said.tool_calls or ()]
        assert len(gateway.captures.rows(rollout).rows) == 1
        messages.append({"role": "user", "content": "And now?"})
        await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        assert len(gateway.captures.rows(rollout).rows) == 2, "the template leaves earlier reasoning out"
        gateway.check(rollout)
