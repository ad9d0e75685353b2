"""What templates are given beside messages and tools: their arguments, the time, chance, and how many messages there are."""

import datetime

import pytest
import transformers.utils.chat_template_utils as chat_template_utils
from renderers import Qwen3RendererConfig
from tests.art_backend.gateway.conftest import start_gateway
from tests.art_backend.gateway.test_families import published
from tests.art_backend.store.test_captures import take_turn
from tests.support.tiny import CHAT_TEMPLATE, build_tiny_tokenizer

from art.wire import Conversation as Example
from art_backend.errors import BadRequestError
from art_backend.examples import render_conversation
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database
from art_backend.tokens import setting
from art_backend.tokens.families import Family
from art_backend.tokens.render import ChatRenderer
from art_backend.tokens.setting import Setting, SizedCache, Toolset, find_argument_names
from art_backend.tokens.tree import Tree, _digest

HELLO = [{"role": "user", "content": "Hello"}]
NUMBERED = CHAT_TEMPLATE.replace("message['role'] +", "(loop.index | string) + message['role'] +").replace(
    "'<|im_start|>assistant", "'<|im_start|>' + (messages | length + 1) | string + 'assistant"
)
HEADS = {
    "the date": "{{ strftime_now('%A %d %B') }}",
    "the time": "{{ strftime_now('%H:%M:%S.%f') }}",
    "a number by chance": "{{ range(99999) | random }}",
    "words by chance": "{{ lipsum(1, False) }}",
    "a count": "{{ messages | length }}",
}


def renderer_of(template):
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer)


@pytest.mark.parametrize("head", HEADS)
async def test_a_conversation_over_midnight_is_one_row(tmp_path, monkeypatch, head):
    """Also with earlier conversations in it, and with the tree read back from disk."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = HEADS[head] + CHAT_TEMPLATE
    now = datetime.datetime(2026, 3, 31, 23, 59, 0).timestamp()
    monkeypatch.setattr(setting.time, "time", lambda: now)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(now, tz)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    async with start_gateway(tmp_path, tokenizer) as gateway:
        client, rollout = gateway.new_client()
        messages = list(HELLO)
        for turn in range(4):
            answer = await client.chat.completions.create(model="m", messages=messages)
            messages += [answer.choices[0].message, {"role": "user", "content": "On."}]
            now += 3600
            if turn == 1:
                gateway.captures._recent.clear()
        assert len(gateway.captures.rows(rollout).rows) == 1
        gateway.check(rollout)
        await client.chat.completions.create(model="m", messages=[*HELLO, messages[1], *HELLO])
        second = gateway.turns(rollout)[-1].prompt
        assert second.parent is not None and second.keep == second.parent.length
        if "strftime" in HEADS[head]:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "new"}])
            assert gateway.turns(rollout)[-1].setting().began == now, "another conversation has its own day"
            await client.chat.completions.create(model="m", messages=HELLO)
            assert gateway.turns(rollout)[-1].setting().began == now, "also one that begins with the same words"


def test_a_numbered_message_has_its_number():
    renderer = renderer_of(NUMBERED)
    tree_messages = [*HELLO, {"role": "assistant", "content": "a"}, *HELLO, {"role": "assistant", "content": "b"}]
    prompt = renderer.render(tree_messages[:3])
    completion = renderer.encode("b<|im_end|>")
    extension = renderer.bridge(prompt, completion, HELLO, None, None, tree_messages)
    assert prompt + completion + extension == renderer.render([*tree_messages, *HELLO])


@pytest.mark.parametrize("head", HEADS)
def test_examples_are_spelled_whatever_varies(head):
    renderer = renderer_of(HEADS[head].replace("messages | length", "1") + CHAT_TEMPLATE)
    chat = [*HELLO, {"role": "assistant", "content": "a"}] * 2
    rows = render_conversation(renderer, Example(messages=chat))
    assert len(rows) == 1


def test_the_same_setting_renders_the_same():
    renderer = renderer_of("".join(HEADS.values()) + CHAT_TEMPLATE)
    one, other = Setting(began=5.0), Setting(began=6.0)
    assert renderer.render(HELLO, None, one) == renderer.render(HELLO, None, one)
    assert renderer.render(HELLO, None, one) != renderer.render(HELLO, None, other)


@pytest.mark.parametrize(
    "form",
    [
        "%d %b %Y",
        "%-d. %B",
        "%A, %e %^a %p %I:%M:%S.%f",
        "%Y-%m-%d %H%%%M",
        "100%",
        "",
        "%%d",
        "%c|%x|%X|%j",
        "ü%yü",
        "%Q",
    ],
)
def test_the_time_of_a_template_is_formatted_as_by_strftime(form):
    began = datetime.datetime(2026, 3, 5, 7, 8, 9, 123).timestamp()
    written = f"{{{{ strftime_now({form!r}) }}}}|{{{{ strftime_now(format={form[:3]!r} ~ {form[3:]!r}) }}}}"
    template = (
        "\n{% if strftime_now is defined %}{% macro now() %}"
        + written
        + "{% endmacro %}{{ now() }}{% endif %}"
        + CHAT_TEMPLATE
    )
    text = datetime.datetime.fromtimestamp(began).strftime(form)
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = template
    ours = setting.apply_template(tokenizer, HELLO, None, Setting(began=began), generation_prompt=True)
    plain = tokenizer.apply_chat_template(
        HELLO, tokenize=False, add_generation_prompt=True, chat_template="\n" + CHAT_TEMPLATE
    )
    assert ours == plain[:1] + f"{text}|{text}" + plain[1:]


@pytest.mark.parametrize(
    "beginning", ["", "\n", "  {% if true %}a{% endif %}", "\n  {% if true %}\na{% endif %}", "  x\n"]
)
def test_the_white_space_where_a_template_begins_is_as_without_the_time(beginning):
    tokenizer, moment = build_tiny_tokenizer(), Setting(began=1.7e9)
    for text in ("{{ '2023' }}", "{{ strftime_now('%Y') }}"):
        tokenizer.chat_template = beginning + text + CHAT_TEMPLATE
        written = setting.apply_template(tokenizer, HELLO, None, moment, generation_prompt=True)
        assert written == tokenizer.apply_chat_template(
            HELLO, tokenize=False, add_generation_prompt=True, chat_template=beginning + "2023" + CHAT_TEMPLATE
        )


def test_a_time_format_that_is_no_directive_is_refused():
    with pytest.raises(BadRequestError, match="unknown directive %5"):
        renderer_of("{{ strftime_now('%5d') }}" + CHAT_TEMPLATE).render(HELLO)


def test_a_sized_cache_keeps_what_was_used_last_up_to_its_size():
    cache = SizedCache(20, len)
    made = []

    def make(text):
        made.append(text)
        return text

    for key in (b"a", b"b", b"a", b"c", b"a", b"b"):
        assert cache.get(key, lambda key=key: make(key.decode() * 8)) == key.decode() * 8
    assert "".join(text[0] for text in made) == "abcb"
    assert cache.get(b"big", lambda: make("x" * 99)) == cache.get(b"big", lambda: make("y")) == "x" * 99


def test_tools_name_a_conversation_as_their_json_does():
    tools, arguments = [{"b": 1, "a": "ü"}], {"z": 1, "c": None}
    for offered, what in ((tools, [tools, arguments]), (None, [None, arguments])):
        assert Toolset.of(offered).digest(arguments) == _digest(b"", what)
    assert Toolset.of(tools).digest({}) == _digest(b"", tools) and Toolset.of(None).digest(None) == _digest(b"", [])


THINKING = "{% if enable_thinking is defined and not enable_thinking %}no thoughts{% endif %}" + CHAT_TEMPLATE


def place(tree, renderer, messages, arguments=None):
    return renderer.detokenizer.decode(tree.place(messages, None, renderer, arguments).path_ids())


def test_template_arguments_are_rendered_and_make_another_conversation(tmp_path):
    renderer, captures = renderer_of(THINKING), CaptureStore(open_database(tmp_path / "art.db"))
    tree, off = Tree(), {"enable_thinking": False}
    assert place(tree, renderer, HELLO, off).startswith("no thoughts")
    assert not place(tree, renderer, HELLO).startswith("no thoughts")
    assert tree.place(HELLO, None, renderer, off).digest != tree.place(HELLO, None, renderer).digest
    assert tree.place(HELLO, None, renderer, {}).digest == tree.place(HELLO, None, renderer).digest
    rollout = captures.create_rollout("p", "m").id
    take_turn(captures, renderer, rollout, HELLO, "a", arguments=off)
    captures._recent.clear()
    (turn,) = captures.tree(rollout).turns.values()
    assert turn.setting().arguments == off
    again = [*HELLO, {"role": "assistant", "content": "a"}, *HELLO]
    assert captures.tree(rollout).place(again, None, renderer, off).parent is turn
    assert captures.tree(rollout).place(again, None, renderer).parent is None


@pytest.mark.parametrize(
    "name",
    [
        *["thinking", "messages", "tokenize", "strftime_now", "chat_template", "bos_token", "range", "__class__"],
        *["message", "content", "thoughts", "if", "", "set_here"],  # the template holds these words
    ],
)
def test_an_argument_without_effect_is_named(name):
    template = "{% set set_here = 1 %}{{ set_here }}{{ bos_token }}" + THINKING
    with pytest.raises(BadRequestError, match=rf"chat_template_kwargs\.{name}:") as caught:
        place(Tree(), renderer_of(template), HELLO, {name: True})
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (THINKING, {"enable_thinking"}),
        ("{% if not date is defined %}{% set date = 'May' %}{% endif %}{{ date }}", {"date"}),
        ("{% set effort = effort | default('low') %}{{ effort }}", {"effort"}),
        ("{% macro say(a) %}{{ a ~ tone }}{% endmacro %}{{ say(documents) }}", {"tone", "documents"}),
        ("{% for m in messages %}{%- generation -%}{{ m }}{% endgeneration %}{% if brief %}{% break %}{% endif %}"
         "{% set ns = namespace(a=1) %}{% endfor %}{{ raise_exception('') }}{{ eos_token }}", {"brief"}),
    ],
)  # fmt: skip
def test_the_arguments_of_a_template_are_those_that_it_does_not_set(template, names):
    assert find_argument_names(template) == names


def test_a_known_family_takes_its_arguments_and_no_others():
    tokenizer = published("qwen3")
    renderer = ChatRenderer(tokenizer, Family(tokenizer, Qwen3RendererConfig()))
    assert place(Tree(), renderer, HELLO, {"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert place(Tree(), renderer, HELLO, {"enable_thinking": True}).endswith("assistant\n")
    with pytest.raises(BadRequestError, match=r"chat_template_kwargs\.thinking"):
        place(Tree(), renderer, HELLO, {"thinking": True})
    with pytest.raises(BadRequestError, match="chat_template_kwargs: "):
        place(Tree(), renderer, HELLO, {"enable_thinking": "perhaps"})
