"""An agent on a real engine through the gateway: what was captured is what was sampled, also under structured output."""

import json
import re

import openai
import pytest
import pytest_asyncio
from openai.lib.streaming.chat import ChatCompletionStreamState
from tests.art_backend.engines.conftest import WITH_A_MODEL
from tests.art_backend.gateway.conftest import check_rows, start_gateway

from art.wire import LoraSpec, TrainOptions
from art_backend.engines.contract import Generation
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.batch import build_batch, weigh
from art_backend.training.rows.packing import pack_rows
from art_backend.training.rows.structures import StructureReplay
from art_backend.training.rows.targets import read_targets
from art_backend.training.types import ScoredTrajectory, StepInput

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("engine", WITH_A_MODEL, indirect=True, scope="session"),
]

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["glad", "sad"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["mood", "size"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weigh", "parameters": SCHEMA, "strict": True}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


class Recorder:
    """An engine's client that remembers what the engine was fed and what it sampled."""

    def __init__(self, client):
        self.client = client
        self.calls = []

    async def generate(self, model, token_ids, sampling, *, rollout=None):
        answer = await self.client.generate(model, token_ids, sampling)
        self.calls.append((list(token_ids), answer.token_ids, answer.logprobs))
        return answer

    async def stream(self, model, token_ids, sampling, *, rollout=None):
        whole = Generation([], [], [], "length")
        self.calls.append((list(token_ids), whole.token_ids, whole.logprobs))
        async for delta in self.client.stream(model, token_ids, sampling):
            whole.token_ids += delta.token_ids
            whole.logprobs += delta.logprobs
            yield delta


@pytest_asyncio.fixture(loop_scope="session")
async def running(engine, tiny_adapter, tmp_path):
    """The gateway over an engine, serving an adapter."""
    await engine.client.load_adapter("m@0", tiny_adapter("llama", 1))
    recorder = Recorder(engine.client)
    async with start_gateway(tmp_path, client=recorder) as gateway:
        gateway.recorder = recorder
        yield gateway
    await engine.client.unload_adapter("m@0")


@pytest.fixture
def trainer_logprobs(tiny_model, tiny_adapter):
    """Returns, for the sampled tokens of rows, the log-probabilities of the trainer and those of the engine."""

    def compute(rows):
        path = tiny_model("llama")
        policy = AdapterPolicy(path, LoraSpec(rank=4, alpha=8), precision="float32")
        policy.load(tiny_adapter("llama", 1))
        replay = StructureReplay(path, policy.vocabulary)
        unlike = ScoredTrajectory(0.0, [rows[0].model_copy(update={"token_ids": [*rows[0].token_ids[:-1], 2]})])
        step = StepInput([[ScoredTrajectory(1.0, rows), unlike]], TrainOptions(), 1)
        batch = build_batch(step, vocabulary=policy.vocabulary, max_length=8192, structures=replay)
        assert replay.lost == 0, "the trainer allows what the engine allowed"
        ours, engines = [], []
        for pack in pack_rows(weigh(batch.members[:1], "token", 8192), 8192):
            targets = read_targets(pack, policy.device)
            ours += targets.logprobs(policy.forward(pack), policy.head).logprobs.tolist()
            engines += targets.engine_logprobs.tolist()
        return ours, engines

    return compute


async def test_what_an_agent_with_tools_leaves_is_what_was_sampled(running, trainer_logprobs):
    client, rollout = running.new_client(timeout=120)
    messages = [{"role": "user", "content": "How much is it?"}]

    async def ask(stream=False, **options):
        options = {"model": "m", "messages": messages, "max_tokens": 60, "temperature": 0.8, **options}
        if not stream:
            return (await client.chat.completions.create(**options)).choices[0].message
        state = ChatCompletionStreamState()
        async for chunk in await client.chat.completions.create(**options, stream=True):
            state.handle_chunk(chunk)
        return state.get_final_completion().choices[0].message

    for stream in (False, True):
        message = await ask(stream, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=300)
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments).keys() == {"mood", "size"}
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "3 kg"})
        message = await ask(tools=[TOOL], tool_choice="none")
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "And now?"}]
    message = await ask(response_format=FORMAT, max_tokens=300)
    assert json.loads(message.content).keys() == {"mood", "size"}

    turns = running.turns(rollout)
    captured = [(turn.prompt.path_ids().tolist(), turn.ids.tolist(), turn.logprobs.tolist()) for turn in turns]
    assert captured == running.recorder.calls
    rows = running.captures.rows(rollout).rows
    check_rows(rows, turns)
    ours, engines = trainer_logprobs(rows)
    assert len(ours) == sum(len(turn.ids) for turn in turns)
    assert ours == pytest.approx(engines, abs=2e-4)
    assert engines.count(0.0) > 20, "words that the structure dictated were no choice"


@pytest.mark.parametrize(
    ("structure", "pattern"),
    [
        ({"regex": "[ab]{3}/[0-9]{1,9};"}, "[ab]{3}/[0-9]{1,9};"),
        ({"choice": ['left "now"', "right"]}, 'left "now"|right'),
        ({"grammar": 'start: "x" "x"? y\ny: /[0-9]/'}, "xx?[0-9]"),
        ({"json": {"enum": [1, 22]}}, "1|22"),
    ],
)
async def test_every_kind_of_structure_is_enforced(running, trainer_logprobs, structure, pattern):
    client, rollout = running.new_client(timeout=120)
    for stream in (False, True):
        extra = {"structured_outputs": structure}
        answer = await client.completions.create(
            model="m", prompt="Go", max_tokens=300, temperature=0.7, extra_body=extra, stream=stream
        )
        text = "".join([part.choices[0].text async for part in answer]) if stream else answer.choices[0].text
        assert re.fullmatch(pattern, text)
    ours, engines = trainer_logprobs(running.captures.rows(rollout).rows)
    assert ours == pytest.approx(engines, abs=2e-4)


async def test_a_structure_that_cannot_be_enforced_is_named(running):
    client, rollout = running.new_client(timeout=120)
    bad = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], response_format=bad
        )
    assert refused.value.param == "response_format.json_schema.schema"
    assert running.turns(rollout) == []
