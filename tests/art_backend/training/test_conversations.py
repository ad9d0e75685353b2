"""Plain messages become the tokens that they would have had, had the model said them."""

import pytest
from renderers import Qwen3RendererConfig
from tests.support.tiny import build_tiny_tokenizer

from art.wire import Conversation
from art_backend.errors import BadRequestError
from art_backend.examples import render_conversation
from art_backend.tokens.families import Family
from art_backend.tokens.render import ChatRenderer

TOKENIZER = build_tiny_tokenizer()

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a two"},
    {"role": "user", "content": "thanks"},
]

FORGETFUL = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and not loop.last %}(gone){% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def renderer():
    return ChatRenderer(build_tiny_tokenizer())


def learned(row, tokenizer=TOKENIZER):
    """The learned tokens as text, one string per run of them."""
    runs, current = [], []
    for token, wanted in zip(row.token_ids, row.sampled, strict=True):
        if wanted:
            current.append(token)
        elif current:
            runs.append(tokenizer.decode(current))
            current = []
    return runs + ([tokenizer.decode(current)] if current else [])


def test_what_the_assistant_says_is_learned_with_the_end_of_its_turn(renderer):
    (row,) = render_conversation(renderer, Conversation(messages=CHAT))
    assert learned(row) == ["a1<|im_end|>", "a two<|im_end|>"]
    whole = renderer.render_whole(CHAT)
    assert row.token_ids == whole[: len(row.token_ids)]
    assert TOKENIZER.decode(whole[len(row.token_ids) :]) == "\n<|im_start|>user\nthanks<|im_end|>\n"
    assert row.logprobs is None
    assert row.temperature == 1.0


def test_the_ids_are_those_that_serving_it_would_have_given(renderer):
    (row,) = render_conversation(renderer, Conversation(messages=CHAT))
    first = renderer.render(CHAT[:2])
    said = [*renderer.encode("a1"), 2]
    extension = renderer.bridge(first, said, CHAT[3:4], None)
    assert row.token_ids == [*first, *said, *extension, *renderer.encode("a two"), 2]


def test_chosen_messages_alone_are_learned(renderer):
    (row,) = render_conversation(renderer, Conversation(messages=CHAT, trained=[4]))
    assert learned(row) == ["a two<|im_end|>"]
    (row,) = render_conversation(renderer, Conversation(messages=CHAT, trained=[2]))
    assert learned(row) == ["a1<|im_end|>"]


def test_everything_is_learned_on_request(renderer):
    (row,) = render_conversation(renderer, Conversation(messages=CHAT), train_on="all")
    assert row.token_ids == renderer.render_whole(CHAT)
    assert row.sampled == [False] + [True] * (len(row.token_ids) - 1)


def test_a_template_that_rewrites_history_gives_a_row_for_each_answer():
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = FORGETFUL
    renderer = ChatRenderer(tokenizer)
    rows = render_conversation(renderer, Conversation(messages=CHAT))
    assert [learned(row) for row in rows] == [["a1<|im_end|>"], ["a two<|im_end|>"]]
    assert "(gone)" in TOKENIZER.decode(rows[1].token_ids)


def test_two_answers_in_a_row_are_two_rows(renderer):
    messages = [CHAT[1], CHAT[2], CHAT[4]]
    rows = render_conversation(renderer, Conversation(messages=messages))
    assert [learned(row) for row in rows] == [["a1<|im_end|>"], ["a two<|im_end|>"]]


def test_calls_and_their_results(renderer):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    (row,) = render_conversation(renderer, Conversation(messages=messages, tools=tools))
    first, second = learned(row)
    assert '"name": "add"' in first
    assert second == "two<|im_end|>"


def test_a_family_with_a_renderer_of_its_own():
    tokenizer = build_tiny_tokenizer()
    tokenizer.unk_token = None
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    renderer = ChatRenderer(tokenizer, Family(tokenizer, Qwen3RendererConfig()))
    rows = render_conversation(renderer, Conversation(messages=CHAT))
    said = [text for row in rows for text in learned(row, tokenizer)]
    assert len(said) == 2
    assert said[0].endswith("a1<|im_end|>")
    assert said[1].endswith("a two<|im_end|>")


@pytest.mark.parametrize(
    ("conversation", "param", "message"),
    [
        ({"messages": [CHAT[1]]}, "messages", "no message is the assistant's"),
        ({"messages": CHAT, "trained": [1]}, "trained", "message 1 is not the assistant's"),
        ({"messages": CHAT, "trained": []}, "trained", "is empty"),
        ({"messages": [{"role": "owl"}]}, "messages.0.role", "must be one of"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "must be a string"),
    ],
)
def test_what_cannot_be_learned_is_named(renderer, conversation, param, message):
    with pytest.raises(BadRequestError, match=message) as caught:
        render_conversation(renderer, Conversation(**conversation))
    assert caught.value.param == param


def test_a_template_that_asks_otherwise_than_it_writes_is_refused():
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
    )
    with pytest.raises(BadRequestError, match="differently from its generation prompt"):
        render_conversation(ChatRenderer(tokenizer), Conversation(messages=CHAT))
