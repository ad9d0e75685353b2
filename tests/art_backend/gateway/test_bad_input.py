"""Bad input is the caller's error, named, in the protocol's shape; the rollout goes on."""

import gzip
import json

import httpx
import openai
import pytest

from art_backend.errors import BadRequestError
from art_backend.gateway.dialects.chat import ChatRequest
from art_backend.gateway.dialects.chat_messages import read_tools
from art_backend.gateway.dialects.completions import CompletionsRequest
from art_backend.gateway.dialects.messages import MessagesRequest
from art_backend.gateway.dialects.responses import ResponsesRequest
from art_backend.gateway.limits import MAX_MESSAGES, check_extent

HELLO = [{"role": "user", "content": "Hello"}]


async def post(gateway, info, body, path="/v1/chat/completions"):
    async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": f"Bearer {info.api_key}"}) as http:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await http.post(path, content=content, headers={"content-type": "application/json"}, timeout=60)


async def test_wrong_types_are_named(gateway):
    info = gateway.rollout()
    good = {"model": "m", "messages": HELLO}
    cases = [
        ({"messages": HELLO}, "model"),
        ({**good, "model": 3}, "model"),
        ({**good, "messages": []}, "messages"),
        ({**good, "messages": "Hello"}, "messages"),
        ({**good, "messages": [3]}, "messages.0"),
        ({**good, "messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
        ({**good, "messages": [{"role": [], "content": ""}]}, "messages.0.role"),
        ({**good, "messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({**good, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
        ({**good, "messages": [*HELLO, {"role": "assistant", "tool_calls": 3}]}, "messages.1.tool_calls"),
        ({**good, "messages": [*HELLO, {"role": "assistant", "tool_calls": [{}]}]}, "messages.1.tool_calls.0"),
        ({**good, "tools": {}}, "tools"),
        ({**good, "tools": [{"type": "custom"}]}, "tools.0"),
        ({**good, "tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({**good, "tools": [{"function": {"name": "f", "parameters": 3}}]}, "tools.0.function.parameters"),
        ({**good, "tool_choice": "required"}, "tool_choice"),
        ({**good, "response_format": {"type": "xml"}}, "response_format.type"),
        ({**good, "stream": "yes"}, "stream"),
        ({**good, "stream_options": 3}, "stream_options"),
        ({**good, "temperature": "hot"}, "temperature"),
        ({**good, "temperature": -1}, "temperature"),
        ({**good, "temperature": True}, "temperature"),
        ({**good, "top_p": 0}, "top_p"),
        ({**good, "max_tokens": 0}, "max_tokens"),
        ({**good, "max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({**good, "n": 1000}, "n"),
        ({**good, "seed": 2**80}, "seed"),
        ({**good, "stop": [3]}, "stop.0"),
        ({**good, "logprobs": "all"}, "logprobs"),
        ({**good, "top_logprobs": 99}, "top_logprobs"),
        ({**good, "logit_bias": {"5": 3}}, "logit_bias"),
    ]
    for body, param in cases:
        answer = await post(gateway, info, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), body
        assert param in error["message"] and error["code"] == "bad_request"
        assert answer.headers["x-should-retry"] == "false"
    assert gateway.engine.calls == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": 1e999}',
        b'{"model": "m", "messages": ' + b"[" * 100_000,
        b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name":'
        b' "f", "parameters": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}}]}",
    ],
)
async def test_what_is_no_request_is_a_400_or_is_answered(gateway, body):
    info = gateway.rollout()
    answer = await post(gateway, info, body)
    assert answer.status_code in (200, 400), answer.text
    assert "error" in answer.json() or answer.json()["choices"]
    assert (await post(gateway, info, {"model": "m", "messages": HELLO})).status_code == 200


PROTOCOLS = {
    "chat/completions": (ChatRequest, {"messages": HELLO}),
    "completions": (CompletionsRequest, {"prompt": "Hello"}),
    "responses": (ResponsesRequest, {"input": "Hello"}),
    "messages": (MessagesRequest, {"messages": HELLO, "max_tokens": 9}),
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model: must be a string."),
        ({"model": ""}, "model: must not be empty."),
        ({"messages": []}, "messages: must not be empty."),
        ({"messages": [*HELLO, 3]}, "messages.1: must be an object."),
        ({"tools": {}}, "tools: must be a list."),
        ({"tool_choice": 3}, "tool_choice: must be a string or an object."),
        ({"stream": 1}, "stream: must be true or false."),
        ({"temperature": True}, "temperature: must be a number."),
        ({"temperature": 2.5}, "temperature: must be at most 2."),
        ({"temperature": float("nan")}, "temperature: must be a finite number."),
        ({"top_p": 0}, "top_p: must be more than 0."),
        ({"n": True}, "n: must be an integer."),
        ({"n": 0}, "n: must be at least 1."),
        ({"seed": 2**63}, "seed: must be less than 9223372036854775808."),
        ({"stop": 3}, "stop: must be a string or a list."),
        ({"stop": ["a", 3]}, "stop.1: must be a string."),
        ({"stop": ["a"] * 4097}, "stop: must have at most 4096 items."),
        ({"stop": "a" * 4097}, "stop: must have at most 4096 characters."),
        ({"guided_json": 3}, "guided_json: must be an object or a string."),
        ({"structured_outputs": "a"}, "structured_outputs: must be an object."),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex: must be a string."),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice: must not be empty."),
        *[
            (
                {"structured_outputs": wrong},
                "structured_outputs: must be an object with one of json, json_object, regex, choice, grammar.",
            )
            for wrong in ({}, {"regex": "a", "grammar": "b"}, {"regex": "a", "other": 1}, {"json_object": False})
        ],
    ],
)
def test_errors_say_what_a_field_must_be(fields, message):
    with pytest.raises(BadRequestError) as caught:
        ChatRequest.read({"model": "m", "messages": HELLO, **fields})
    assert (caught.value.message, caught.value.param) == (message, message.partition(":")[0])


def test_a_field_that_is_missing_is_named():
    with pytest.raises(BadRequestError, match=r"^max_tokens: is required\.$"):
        MessagesRequest.read({"model": "m", "messages": HELLO})


@pytest.mark.parametrize(
    ("request_type", "name"),
    [
        (ChatRequest, "stop"),
        (ChatRequest, "guided_choice"),
        (ChatRequest, "structured_outputs.choice"),
        (ChatRequest, "messages"),
        (MessagesRequest, "stop_sequences"),
        (ResponsesRequest, "include"),
    ],
)
def test_of_a_long_list_of_wrong_items_the_first_is_named(request_type, name):
    """What else is wrong is not even looked at: a body has room for millions of items."""
    wrong = [3] * 10_000
    holder, _, kind = name.partition(".")
    fields = (
        {"model": "m", "messages": HELLO, "max_tokens": 9} if request_type is not ResponsesRequest else {"model": "m"}
    )
    with pytest.raises(BadRequestError) as caught:
        request_type.read({**fields, holder: {kind: wrong} if kind else wrong})
    assert caught.value.param == f"{name}.0"
    assert caught.value.__cause__.error_count() <= 2


RESULT = {"type": "tool_result", "tool_use_id": "x"}


@pytest.mark.parametrize(
    ("holder", "body"),
    [
        ("messages", lambda parts: {"messages": [{"role": "user", "content": parts}]}),
        ("system", lambda parts: {"system": parts}),
        ("messages", lambda parts: {"messages": [{"role": "user", "content": [{**RESULT, "content": parts}]}]}),
        ("input", lambda parts: {"input": [{"type": "function_call_output", "output": parts}]}),
        ("input", lambda parts: {"input": [{"type": "reasoning", "summary": parts}]}),
    ],
)
def test_parts_are_counted_wherever_they_stand(holder, body):
    check_extent(body(["a"] * (MAX_MESSAGES - 2)), 0)
    with pytest.raises(BadRequestError, match="the limit is 10000") as caught:
        check_extent(body(["a"] * (MAX_MESSAGES + 1)), 0)
    assert caught.value.param == holder


def test_custom_tools_of_wrong_types_are_named():
    for inner, param in (
        ({"description": 3}, "tools.0.custom.description"),
        ({"format": {"type": "grammar", "grammar": "start: /a/"}}, "tools.0.custom.format.grammar"),
    ):
        with pytest.raises(BadRequestError) as caught:
            read_tools([{"type": "custom", "custom": {"name": "f", **inner}}])
        assert caught.value.param == param


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_every_field_of_every_protocol_may_be_wrong(quiet_gateway, path):
    """The error names it, in the protocol's own shape; the rollout goes on."""
    gateway = quiet_gateway  # a sign of life while a form is compiled would leave no room for an error
    info = gateway.rollout()
    request, good = PROTOCOLS[path]
    good = {"model": "m", **good}
    for name in request.model_fields:
        for value in (3.5, "x", [[3]], {"type": []}, [{"type": 3}], True):
            answer = await post(gateway, info, {**good, name: value}, f"/v1/{path}")
            assert answer.status_code in (200, 400, 404), (name, value, answer.text)
            if answer.status_code == 200:
                continue
            error = answer.json()["error"]
            assert error["message"].startswith(name) or error["message"].startswith("No model"), (name, value, error)
            if path == "messages":
                assert error["type"] in ("invalid_request_error", "not_found_error")
            else:
                assert error["param"].startswith(name), (name, value, error)
    answer = await post(gateway, info, good, f"/v1/{path}")
    assert answer.status_code == 200
    gateway.check(info.id)


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "x", "gzip, identity"])
@pytest.mark.parametrize("path", [*PROTOCOLS, "messages/count_tokens"])
async def test_a_body_that_is_encoded_is_refused_by_its_header(gateway, path, encoding):
    info = gateway.rollout()
    content = gzip.compress(json.dumps({"model": "m", "messages": HELLO}).encode())
    async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": f"Bearer {info.api_key}"}) as http:
        answer = await http.post(f"/v1/{path}", content=content, headers={"content-encoding": encoding})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"Content-Encoding: '{encoding}' is not supported.")
        plain = {"model": "m", **PROTOCOLS.get(path, PROTOCOLS["messages"])[1]}
        assert (await http.post(f"/v1/{path}", json=plain, headers={"content-encoding": "Identity"})).status_code == 200


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_what_is_no_text_and_what_is_huge(gateway, path):
    info = gateway.rollout()
    _, good = PROTOCOLS[path]
    whole = json.dumps({"model": "m", **good})
    for wrong in (b"", b"{", b"[]", whole.replace("Hello", "@").encode().replace(b"@", b"\xff"), whole[:-1].encode()):
        answer = await post(gateway, info, wrong, f"/v1/{path}")
        assert answer.status_code == 400
        assert "JSON" in answer.json()["error"]["message"]
    assert (await post(gateway, info, whole.replace("Hello", "\\ud800").encode(), f"/v1/{path}")).status_code == 400
    huge = await post(gateway, info, whole.replace("Hello", "é" * 5_000_000).encode(), f"/v1/{path}")
    assert gateway.captures.get(info.id).truncated
    told = huge.json()
    if path == "responses":
        assert (huge.status_code, told["error"]["code"]) == (400, "context_length_exceeded")
    else:
        assert huge.status_code == 200
        reason = told["choices"][0]["finish_reason"] if "choices" in told else told["stop_reason"]
        assert reason in ("length", "model_context_window_exceeded")
    assert (await post(gateway, info, whole.encode(), f"/v1/{path}")).status_code == 200
    gateway.check(info.id)


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_the_key_of_a_rollout_that_retention_deleted(gateway, path):
    """It opens nothing any more, which is not worth a retry; others go on."""
    expired, alive = gateway.rollout(), gateway.rollout()
    body = {"model": "m", **PROTOCOLS[path][1]}
    for info in (expired, alive):
        assert (await post(gateway, info, body, f"/v1/{path}")).status_code == 200
    gateway.captures.delete(expired.id)
    for prefix in ("/v1", f"/r/{expired.id}/v1"):
        answer = await post(gateway, expired, body, f"{prefix}/{path}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        assert answer.headers["x-should-retry"] == "false"
    assert (await post(gateway, expired, body, f"/r/{alive.id}/v1/{path}")).status_code == 401
    assert (await post(gateway, alive, body, f"/v1/{path}")).status_code == 200
    assert len(gateway.turns(alive.id)) == 2


async def test_depth_is_limited_before_anything_is_stored(gateway):
    """A little less deep than what is refused is repeated in the answer, and kept."""
    info, seen = gateway.rollout(), set()
    for depth in range(244, 260):
        deep = b'{"model": "m", "input": "Hello", "metadata": ' + b"[" * depth + b"]" * depth + b"}"
        answer = await post(gateway, info, deep, "/v1/responses")
        seen.add(answer.status_code)
        assert answer.status_code == 200 or "nested too deeply" in answer.json()["error"]["message"]
    assert seen == {200, 400}


async def test_unknown_models_and_keys(gateway):
    client, _ = gateway.new_client(max_retries=2)
    with pytest.raises(openai.NotFoundError, match="Models: \\['m'\\]"):
        await client.chat.completions.create(model="gpt", messages=HELLO)
    with pytest.raises(openai.AuthenticationError):
        await gateway.client("nobody").chat.completions.create(model="m", messages=HELLO)


async def test_a_rollout_deleted_in_mid_call_is_a_404(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.choose = lambda call: gateway.captures.delete(rollout)
    with pytest.raises(openai.NotFoundError, match="retention"):
        await client.chat.completions.create(model="m", messages=HELLO)


async def test_malformed_tool_calls_reach_the_agent_as_text(gateway):
    client, rollout = gateway.new_client()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    gateway.engine.say('<tool_call>{"name": "f", "arguments": {"a": </tool_call>', "ok")
    answer = await client.chat.completions.create(model="m", messages=HELLO, tools=tools)
    message = answer.choices[0].message
    assert message.tool_calls is None and '"arguments": {"a": ' in message.content
    assert answer.choices[0].finish_reason == "stop"
    bad = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"city": "Z'}}
    history = [*HELLO, message, {"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [bad]}]
    await client.chat.completions.create(model="m", messages=[*history, *HELLO], tools=tools)
    call = {"type": "function_call", "call_id": "x", **bad["function"]}
    await client.responses.create(
        model="m", input=[*HELLO, call, {"type": "function_call_output", "call_id": "x", "output": "?"}]
    )
    assert '{"city": "Z' in gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed).replace('\\"', '"')
    gateway.check(rollout)
