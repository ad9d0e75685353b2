"""Tools for chat templates that know none.

The model is told of them in the system message, in the widespread ``<tool_call>`` convention: one JSON object with ``name`` and
``arguments`` between tags. Earlier calls stand in the assistant's words in the same form, and results come as a user message
between ``<tool_response>`` tags. Models that were never trained on it learn it from this text, and from rewards.
"""

import json
from collections.abc import Sequence
from typing import Any

from art_backend.tokens.notation import HERMES
from art_backend.tokens.setting import Message

PREAMBLE = """You may call functions to help the user. These are available, one JSON signature a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def spell_out_tools(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[Message]:
    """Rewrite messages so that a template without tools can show them."""
    result: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            response = f"<tool_response>\n{message['content']}\n</tool_response>"
            if result and result[-1].get("responses"):
                result[-1]["content"] += f"\n{response}"
            else:
                result.append({"role": "user", "content": response, "responses": True})
        elif message.get("tool_calls"):
            calls = [_spell_out_call(call["function"]) for call in message["tool_calls"]]
            result.append({"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))})
        else:
            result.append({"role": message["role"], "content": message["content"]})
    for message in result:
        message.pop("responses", None)
    return _tell_of_tools(result, tools) if tools else result


def _tell_of_tools(messages: list[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    preamble = PREAMBLE.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{preamble}"}, *messages[1:]]
    return [{"role": "system", "content": preamble}, *messages]


def _spell_out_call(function: dict[str, Any]) -> str:
    what = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{HERMES.mark}\n{what}\n{HERMES.end}"
