"""Server-sent events of a model call, put together to the answer that they are pieces of."""

import json
from collections.abc import Sequence
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from art.openai import consume_sync_chat_completion_stream


def read_events(body: bytes) -> list[str]:
    """The data of each event, without the marks that end a stream."""
    lines = (
        line.removeprefix("data:").strip() for line in body.decode(errors="replace").splitlines() if line[:5] == "data:"
    )
    return [data for data in lines if data not in ("", "[DONE]")]


def assemble_chat(events: Sequence[str]) -> ChatCompletion | None:
    """The completion; ``None`` if no choice came."""
    chunks = [ChatCompletionChunk.model_validate_json(event) for event in events]
    return consume_sync_chat_completion_stream(chunks) if any(chunk.choices for chunk in chunks) else None


def assemble_completion(events: Sequence[str]) -> Completion | None:
    """The text completion: texts and log-probabilities are appended, everything else is replaced."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk: dict[str, Any] = json.loads(event)
        for piece in chunk.pop("choices", ()):
            choice = choices.setdefault(piece["index"], {"text": "", "finish_reason": "stop", "logprobs": None})
            _add_logprobs(choice, piece.pop("logprobs", None))
            text = choice["text"] + (piece.pop("text", None) or "")
            choice |= {name: value for name, value in piece.items() if value is not None} | {"text": text}
        whole |= {name: value for name, value in chunk.items() if value is not None}
    if not choices:
        return None
    return Completion.model_validate({**whole, "choices": [choices[index] for index in sorted(choices)]})


def _add_logprobs(choice: dict[str, Any], piece: dict[str, Any] | None) -> None:
    if piece is not None:
        so_far: dict[str, list[Any]] = choice["logprobs"] or {}
        choice["logprobs"] = {name: [*so_far.get(name, ()), *(values or ())] for name, values in piece.items()}


def assemble_response(events: Sequence[str]) -> Response | None:
    """The response that its last event holds; ``None`` if it did not come to an end."""
    found = [json.loads(event) for event in events if '"response.completed"' in event]
    return Response.model_validate(found[-1]["response"]) if found else None


def assemble_message(events: Sequence[str]) -> dict[str, Any] | None:
    """The body of an Anthropic message; ``None`` if it was not begun."""
    message: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for event in map(json.loads, events):
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif not message or kind == "error":
            return None
        elif kind == "content_block_start":
            message["content"].append(event["content_block"])
        elif kind == "content_block_delta":
            _add_delta(message["content"][event["index"]], event["delta"], arguments, event["index"])
        elif kind == "message_delta":
            # its own fields, such as the reference to the captured turn, are the message's
            message |= {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
            message |= event["delta"]
            counts: dict[str, Any] = event.get("usage") or {}
            message["usage"] |= {name: value for name, value in counts.items() if value is not None}
    for index, text in arguments.items():
        if text:
            message["content"][index]["input"] = json.loads(text)
    return message or None


def _add_delta(block: dict[str, Any], delta: dict[str, Any], arguments: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "input_json_delta":
            arguments[index] = arguments.get(index, "") + delta["partial_json"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        case "text_delta" | "thinking_delta" as kind:
            name = kind.removesuffix("_delta")
            block[name] = block.get(name, "") + delta[name]
        case _:  # a signature replaces what was there
            block |= {name: value for name, value in delta.items() if name != "type"}
