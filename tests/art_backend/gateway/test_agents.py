"""Whatever an agent does, each captured token is one that the engine saw or sampled, and is trained exactly once."""

import asyncio
import copy
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.art_backend.gateway.conftest import MODEL_KEY, check_rows, start_gateway
from tests.support.tiny import build_tiny_tokenizer

from art_backend.tokens.rows import build_rows

WORDS = st.text("ab", max_size=2)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]

ASK = st.fixed_dictionaries(
    {
        "words": WORDS,
        "n": st.integers(1, 2),
        "stream": st.booleans(),
        "max_tokens": st.integers(1, 4),
        "stop": st.sampled_from([None, ["b"]]),
        "temperature": st.sampled_from([None, None, 0.5, 0]),
        "tools": st.sampled_from([None, None, TOOLS]),
    }
)
STEP = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3), ASK),
    st.tuples(st.just("parallel"), st.integers(0, 3), st.lists(ASK, min_size=2, max_size=3)),
    st.tuples(st.just("edit"), st.integers(0, 3), st.tuples(st.integers(0, 9), WORDS)),
    st.tuples(st.just("fork"), st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("retry"), st.just(0), st.none()),
)


# Earlier answers are cut to a letter once something follows, as templates do with reasoning.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if loop.last or m.role == 'user' else m.content[:1] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(params=["plain", "forgetful"])
async def any_gateway(request, tmp_path):
    tokenizer = build_tiny_tokenizer()
    if request.param == "forgetful":
        tokenizer.chat_template = FORGETFUL
    async with start_gateway(tmp_path, tokenizer, keep_alive_s=5.0) as running:
        yield running


class Agent:
    """Holds some conversations, and asks as it is told."""

    def __init__(self, client):
        self.client = client
        self.conversations = [[{"role": "system", "content": "s"}]]
        self.last = None
        self.references = []

    async def step(self, kind, which, what):
        messages = self.conversations[which % len(self.conversations)]
        if kind == "ask":
            messages.append({"role": "user", "content": what["words"]})
            messages.append(await self.ask(messages, what))
        elif kind == "parallel":
            forks = [[*messages, {"role": "user", "content": ask["words"]}] for ask in what]
            answers = await asyncio.gather(*(self.ask(fork, ask) for fork, ask in zip(forks, what, strict=True)))
            for fork, answer in zip(forks, answers, strict=True):
                self.conversations.append([*fork, answer])
        elif kind == "edit":
            at, words = what
            messages[at % len(messages)] = {**messages[at % len(messages)], "content": words}
        elif kind == "fork":
            self.conversations.append(copy.deepcopy(messages[: 1 + what % len(messages)]))
        elif self.last is not None:
            await self.ask(*self.last, headers={"x-stainless-retry-count": "1"})

    async def ask(self, messages, what, headers=None):
        self.last = (list(messages), what)
        options = {key: value for key, value in what.items() if value is not None and key != "words"}
        answer = await self.client.chat.completions.create(
            model="m", messages=messages, extra_headers=headers, **options
        )
        if not what["stream"]:
            self.references += [choice.model_extra["art"]["turn"] for choice in answer.choices]
            return {"role": "assistant", "content": answer.choices[-1].message.content}
        texts = [""] * what["n"]
        async for chunk in answer:
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                self.references.append(choice.model_extra["art"]["turn"])
        return {"role": "assistant", "content": texts[-1]}


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(program=st.lists(STEP, min_size=1, max_size=8), seed=st.integers(0, 99))
async def test_random_agents(any_gateway, program, seed):
    gateway = any_gateway
    chance = random.Random(seed)
    gateway.engine.choose = lambda call: (
        [*gateway.renderer.encode("".join(chance.choices("ab", k=chance.randrange(3)))), 2, 70, 70]
    )
    gateway.engine.calls.clear()
    client, rollout = gateway.new_client()
    agent = Agent(client)
    for step in program:
        await agent.step(*step)
    await client.close()
    turns = gateway.turns(rollout)
    assert sorted(agent.references) == sorted(turn.id for turn in turns)
    assert len(turns) == len(gateway.engine.calls)
    stored = sum(len(p.ids) for p in gateway.captures.tree(rollout).prompts.values()) + sum(len(t.ids) for t in turns)
    assert gateway.captures.tree(rollout).size == stored
    before = gateway.captures.rows(rollout)
    gateway.captures._recent.clear()  # read back from disk
    gateway.captures._in_use.clear()
    assert gateway.captures.rows(rollout) == before
    gateway.check(rollout)


async def test_conversations_under_a_model_key_share_a_tree_and_train_apart(gateway):
    """Agents written without rollout keys: identical words from different conversations, one row per trajectory."""
    client = gateway.client(MODEL_KEY)

    async def play():
        messages, turns = [{"role": "user", "content": "Move"}], []
        for _ in range(3):
            gateway.engine.say("5")
            answer = (await client.chat.completions.create(model="m", messages=messages)).choices[0]
            messages += [answer.message, {"role": "user", "content": "ok"}]
            turns.append(answer.model_extra["art"]["turn"])
        return turns

    trajectories = await asyncio.gather(*(play() for _ in range(4)))
    tree = None
    for turns in trajectories:
        ((rollout, found),) = gateway.captures.find_turns(turns).items()
        tree = gateway.captures.tree(rollout)
        rows, _ = build_rows(found)
        assert len(rows) == 1
        check_rows(rows, [tree.turns[turn] for turn in turns])
    assert len(tree.turns) == 12


async def test_ambient_rollouts_follow_the_policy_and_stay_bounded(gateway):
    client = gateway.client(MODEL_KEY)

    async def ask(messages):
        answer = (await client.chat.completions.create(model="m", messages=messages)).choices[0]
        return answer.message, answer.model_extra["art"]

    first, begun = await ask([{"role": "user", "content": "Hello"}])
    rollouts = [begun["rollout"]]
    for step in range(1, 6):
        gateway.model.step = step
        _, reference = await ask([{"role": "user", "content": "Hello"}])
        rollouts.append(reference["rollout"])
        assert reference["policy_version"] == step
        if step == 2:
            history = [{"role": "user", "content": "Hello"}, first, {"role": "user", "content": "?"}]
            _, later = await ask(history)
            assert later["rollout"] == begun["rollout"], "a conversation goes on where it began"
            (found,) = gateway.captures.find_turns([begun["turn"], later["turn"]]).values()
            assert [sorted(set(row.policy_versions)) for row in build_rows(found)[0]] == [[-1, 0, 2]]
    assert len(set(rollouts)) == 6
    gateway.captures._recent.clear()
    assert begun["rollout"] not in gateway.captures._in_use, "old trees leave the memory"
    ((rollout, found),) = gateway.captures.find_turns([begun["turn"]]).items()
    assert rollout == begun["rollout"] and len(build_rows(found)[0]) == 1


async def test_n_choices_of_a_conversation_that_continues_from_one(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("a", "b", "c")
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], n=2)
    chosen = next(choice.message for choice in answer.choices if choice.message.content == "b")
    messages = [{"role": "user", "content": "?"}, chosen, {"role": "user", "content": "!"}]
    await client.chat.completions.create(model="m", messages=messages)
    rows = gateway.captures.rows(rollout).rows
    assert sorted(sum(row.sampled) for row in rows) == [2, 4]
    gateway.check(rollout)


@pytest.mark.parametrize("how", ["model", "rollout", "retention"])
async def test_a_model_key_answers_after_its_rollouts_were_deleted(gateway, how):
    client, hello = gateway.client(MODEL_KEY), [{"role": "user", "content": "Hello"}]

    async def ask(messages):
        return (await client.chat.completions.create(model="m", messages=messages)).choices[0]

    first = await ask(hello)
    reference = first.model_extra["art"]
    match how:
        case "model":
            gateway.captures.delete_model("p", "m")
        case "rollout":
            gateway.captures.delete(reference["rollout"])
        case "retention":
            gateway.captures.delete_unused(-1.0)
    second = await ask([*hello, first.message, *hello])
    assert second.model_extra["art"]["rollout"] != reference["rollout"]
    third = await ask([*hello, first.message, *hello, second.message, *hello])
    assert third.model_extra["art"]["rollout"] == second.model_extra["art"]["rollout"]
    assert len(gateway.captures.rows(third.model_extra["art"]["rollout"]).rows) == 1
