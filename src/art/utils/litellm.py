"""Choices of litellm as choices of OpenAI's SDK."""

from typing import Any

from openai.types.chat.chat_completion import Choice

from art.rollouts.references import read_reference


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """Turn a finished litellm choice of an assistant into the object that trajectories hold.

    >>> from types import SimpleNamespace
    >>> message = SimpleNamespace(role="assistant", content="Hi.", tool_calls=None)
    >>> convert_litellm_choice_to_openai(SimpleNamespace(index=0, finish_reason="stop", message=message)).message.content
    'Hi.'
    """
    choice, message = litellm_choice, litellm_choice.message
    assert message.role == "assistant", f"expected an assistant's message, got {message.role!r}"
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    logprobs = getattr(choice, "logprobs", None)
    fields: dict[str, Any] = {
        "index": choice.index,
        "finish_reason": choice.finish_reason,
        "message": {"role": "assistant", "content": message.content, "tool_calls": calls or None},
        "logprobs": None if logprobs is None else {"content": _tokens(logprobs), "refusal": None},
    }
    if (reference := read_reference(choice)) is not None:
        fields["art"] = reference
    return Choice.model_validate(fields)


def _tokens(logprobs: Any) -> list[dict[str, Any]]:
    return [
        {
            "token": entry.token,
            "bytes": entry.bytes,
            "logprob": entry.logprob,
            "top_logprobs": [
                {"token": top.token, "bytes": top.bytes, "logprob": top.logprob} for top in entry.top_logprobs or ()
            ],
        }
        for entry in logprobs.content or ()
    ]
