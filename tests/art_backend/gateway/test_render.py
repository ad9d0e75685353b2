"""Rendering and bridging against the chat template itself."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig
from tests.support.tiny import build_tiny_tokenizer

from art_backend.errors import BadRequestError
from art_backend.tokens.detokenize import Detokenizer, TextStream
from art_backend.tokens.families import Family
from art_backend.tokens.render import ChatRenderer

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

# Written for these tests in the manner of templates that show tools, group results and know reasoning.
TOOL_TEMPLATE = """{%- if tools %}<|im_start|>system
{{ messages[0].content + '\\n' if messages[0].role == 'system' }}Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}<|im_start|>assistant
{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% elif m.role == 'user' or not loop.first %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def renderer_of(template=None):
    tokenizer = build_tiny_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return ChatRenderer(tokenizer)


def conversations(renderer, messages, tools=None):
    """Serve a conversation whose assistant turns say what ``messages`` has, bridging each prompt; give the last prompt."""
    prompt, start = None, 0
    for end, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if prompt is None:
            prompt = renderer.render(messages[:end], tools)
        else:
            extension = renderer.bridge(prompt, completion, messages[start:end], tools)  # noqa: F821
            if extension is None:
                return None
            prompt = prompt + completion + extension  # noqa: F821
        whole = renderer.render([*messages[: end + 1], {"role": "user", "content": ""}], tools)
        completion = _completion(renderer, prompt, whole)
        start = end + 1
    return prompt + completion + renderer.bridge(prompt, completion, messages[start:], tools)


def _completion(renderer, prompt, whole):
    assert whole[: len(prompt)] == prompt
    close = whole.index(renderer.stop_token_ids[0], len(prompt))
    return whole[len(prompt) : close + 1]


ROUND = st.tuples(
    st.text(max_size=6), st.lists(st.tuples(st.sampled_from(["user", "system", "tool"]), st.text(max_size=6)), min_size=1, max_size=3)
)  # fmt: skip


@pytest.mark.parametrize("template", [None, TOOL_TEMPLATE])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_bridged_prompt_is_the_rendered_one(template, tools):
    renderer = renderer_of(template)

    @settings(max_examples=40, deadline=None)
    @given(st.text(max_size=5), st.lists(ROUND, min_size=1, max_size=3))
    def check(question, rounds):
        messages = [{"role": "user", "content": question}]
        for answer, others in rounds:
            messages.append({"role": "assistant", "content": answer})
            messages += [{"role": role, "content": content} for role, content in others]
        assert conversations(renderer, messages, tools) == renderer.render(messages, tools)

    check()


def test_tool_calls_and_results_bridge():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    for template in (None, TOOL_TEMPLATE):
        renderer = renderer_of(template)
        rendered = renderer.render(messages, TOOLS)
        assert conversations(renderer, messages, TOOLS) == rendered
        text = renderer.detokenizer.decode(rendered)
        assert text.count("<tool_response>") == 2 and '{"name": "add", "arguments": {"a": 1}}' in text
        assert '"name": "add"' in text.split("Be brief.")[1]
        answer = renderer.encode('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>')
        assert renderer.parse(answer, rendered, TOOLS).tool_calls[0].name == "add"


def test_malformed_arguments_in_history_render():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    for template in (None, TOOL_TEMPLATE):
        renderer = renderer_of(template)
        assert '{\\"a\\": ' in renderer.detokenizer.decode(renderer.render(messages, TOOLS))


@pytest.mark.parametrize(
    "template",
    [
        # earlier answers are rewritten once something follows
        "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content if loop.last or m.role == 'user' else '…' }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>a:{% endif %}",
        # system messages are moved to the front
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}",
        # a turn does not end with a token of its own
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    ],
)
def test_what_cannot_be_proven_is_not_bridged(template):
    renderer = renderer_of(template)
    assert renderer.bridge([5, 6], [7, 2], [{"role": "system", "content": "s"}], None) is None


def test_assistant_words_beside_new_messages_are_context():
    renderer = renderer_of()
    new = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "edited"},
        {"role": "user", "content": "v"},
    ]
    extension = renderer.bridge([5], [6, 2], new, None)
    assert renderer.detokenizer.decode(extension) == "\nuser\nu\nassistant\nedited\nuser\nv\nassistant\n"


def test_a_refused_message_is_the_callers_error():
    renderer = renderer_of("{{ raise_exception('no system, please') }}")
    with pytest.raises(BadRequestError, match="no system, please"):
        renderer.render([{"role": "user", "content": "x"}])


@given(st.text(max_size=12), st.integers(1, 3))
def test_streamed_text_is_the_whole_text(text, size):
    detokenizer = Detokenizer(build_tiny_tokenizer())
    ids = build_tiny_tokenizer().encode(text, add_special_tokens=False)
    stream = TextStream(detokenizer)
    parts = [stream.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
    assert "".join([*parts, stream.finish()]) == text
    assert b"".join(detokenizer.token_bytes(i) for i in ids) == text.encode()


def test_random_bytes_never_block_a_stream():
    detokenizer = Detokenizer(build_tiny_tokenizer())
    chance = random.Random(0)
    for _ in range(50):
        ids = [chance.randrange(3, 259) for _ in range(60)]
        stream = TextStream(detokenizer)
        text = "".join(stream.feed([i]) for i in ids)
        assert len(text) > 20
        assert text + stream.finish() == detokenizer.decode(ids)


@pytest.fixture(scope="module")
def qwen():
    """The hand-written Qwen3 renderer over a tiny vocabulary."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.unk_token = None
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    return ChatRenderer(tokenizer, Family(tokenizer, Qwen3RendererConfig()))


def test_a_known_family_bridges_within_a_tool_cycle_and_forks_at_a_new_question(qwen):
    prompt = qwen.render([{"role": "user", "content": "1+1?"}], TOOLS)
    completion = qwen.encode(
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    )
    parsed = qwen.parse(completion, prompt, TOOLS)
    assert (parsed.reasoning.strip(), parsed.content, parsed.tool_calls[0].name) == ("hm", "", "add")
    result = [{"role": "tool", "content": "2", "tool_call_id": "c1"}]
    extension = qwen.bridge(prompt, completion, result, TOOLS)
    assert qwen.detokenizer.decode(extension).startswith("\nuser\n<tool_response>\n2")
    cut = qwen.bridge(prompt, completion[:-1], result, TOOLS)
    assert cut == [completion[-1], *extension], "a completion cut short is closed by an observed token"
    assert qwen.bridge(prompt, completion, [{"role": "user", "content": "And 2+2?"}], TOOLS) is None


def test_a_known_family_streams_what_it_parses(qwen):
    prompt = qwen.render([{"role": "user", "content": "1+1?"}], TOOLS)
    text = (
        "<think>\nSome thoughts about it\n</think>\n\nLet me compute that for you.\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": \n</tool_call><|im_end|>'
    )
    ids = qwen.encode(text)
    stream = qwen.stream(prompt, TOOLS)
    parts = [stream.feed([i]) for i in ids]
    message, whole = stream.finish(), qwen.parse(ids, prompt, TOOLS)
    shown = "".join(part.content for part in parts)
    assert shown == "Let me compute that for you."
    assert shown + message.content == whole.content
    assert "".join(part.reasoning for part in parts) + message.reasoning == whole.reasoning
    assert [call.name for call in message.tool_calls] == ["add"]
    assert '"arguments": {"a":' in whole.content, "a malformed call is given as text"


def test_a_known_family_stops_at_a_string(qwen):
    prompt = qwen.render([{"role": "user", "content": "Count"}])
    stream = qwen.stream(prompt, None, ["six"])
    text, used = "", 0
    for token_id in qwen.encode("one two three four five six seven"):
        text += stream.feed([token_id]).content
        used += 1
        if stream.stopped:
            break
    assert used == len("one two three four five six")
    assert (text + stream.finish().content).rstrip() == "one two three four five"
