"""What the gateway sends is what the official types say, field by field: SDKs take anything, other clients do not."""

import json

import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

HELLO = [{"role": "user", "content": "Hello"}]
SAID = '<think>\nhm\n</think>\n\nLet me see.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
PROTOCOLS = {
    "chat/completions": (
        {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}], "logprobs": True, "top_logprobs": 1},
        ChatCompletion,
        ChatCompletionChunk,
    ),
    "completions": ({"prompt": "Hello", "logprobs": 1, "max_tokens": 100}, Completion, Completion),
    "responses": (
        {
            "input": "Hello",
            "tools": [{"type": "function", "strict": False, **FUNCTION}],
            "include": ["message.output_text.logprobs"],
            "reasoning": {"effort": "low"},
        },
        Response,
        ResponseStreamEvent,
    ),
    "messages": (
        {"messages": HELLO, "max_tokens": 500, "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        Message,
        RawMessageStreamEvent,
    ),
}


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize("said", [SAID, "Just words", ""])
async def test_answers_and_events_have_the_official_shape(gateway, path, said):
    body, whole, event = PROTOCOLS[path]
    headers = {"authorization": f"Bearer {gateway.rollout().api_key}"}
    gateway.engine.say(said, said)
    async with httpx.AsyncClient(base_url=f"{gateway.url}/v1/", headers=headers, timeout=30) as http:
        answer = await http.post(path, json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
        TypeAdapter(whole).validate_python(answer.json())
        told = await http.post(path, json={"model": "m", "stream": True, **body})
        lines = [line[6:] for line in told.text.splitlines() if line.startswith("data: ")]
        assert len(lines) > 2
        for line in lines:
            if line == "[DONE]":
                continue
            data = json.loads(line)
            if path == "completions" and not data["choices"][0]["finish_reason"]:
                # null until the end, as OpenAI sends it; the type says otherwise
                data["choices"][0]["finish_reason"] = "stop"
            TypeAdapter(event).validate_python(data)


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_errors_have_the_shape_of_their_protocol(gateway, path):
    headers = {"authorization": f"Bearer {gateway.rollout().api_key}"}
    async with httpx.AsyncClient(base_url=f"{gateway.url}/v1/", headers=headers, timeout=30) as http:
        answer = await http.post(path, json={**PROTOCOLS[path][0], "model": "unknown"})
        assert answer.status_code == 404
        error = answer.json()["error"]
        if path == "messages":
            assert answer.json()["type"] == "error"
            assert (error["type"], set(error)) == ("not_found_error", {"type", "message"})
        else:
            assert set(error) == {"message", "type", "param", "code"}
            assert error["param"] == "model"
