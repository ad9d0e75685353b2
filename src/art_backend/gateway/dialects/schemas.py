"""The requests of the data plane as JSON schemas, for the service's OpenAPI description.

They hold the fields that are honoured; ``fields`` says what becomes of others.
"""

from typing import Any

Schema = dict[str, Any]


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _nullable(**schema: Any) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _texts(*kinds: str) -> Schema:
    """Text, or a list of text parts."""
    part = _object(["type", "text"], type={"enum": list(kinds)}, text={"type": "string"})
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}


_STRING: Schema = {"type": "string"}
_MODEL: Schema = {"type": "string", "minLength": 1}
_FLAG = _nullable(type="boolean")
_COUNT = _nullable(type="integer", minimum=1)
_NAME: Schema = {"type": "string", "minLength": 1}
_PARAMETERS: Schema = {"type": "object", "description": "A JSON schema."}
_STRINGS: Schema = {"type": "array", "items": _STRING}
_SAMPLING: dict[str, Schema] = {
    "temperature": _nullable(type="number", minimum=0, maximum=2),
    "top_p": _nullable(type="number", exclusiveMinimum=0, maximum=1),
    "stream": _FLAG,
    "seed": _nullable(type="integer", minimum=-(2**63), exclusiveMaximum=2**63),
    "presence_penalty": _nullable(type="number", minimum=-2, maximum=2),
    "frequency_penalty": _nullable(type="number", minimum=-2, maximum=2),
    # vLLM's
    "top_k": _nullable(type="integer", minimum=-1),
    "min_p": _nullable(type="number", minimum=0, maximum=1),
    "repetition_penalty": _nullable(type="number", exclusiveMinimum=0),
    "stop_token_ids": _nullable(type="array", items={"type": "integer", "minimum": 0, "exclusiveMaximum": 2**31}),
    "ignore_eos": _FLAG,
    "structured_outputs": _nullable(type="object"),
    "guided_json": {"anyOf": [{"type": "object"}, _STRING, {"type": "null"}]},
    "guided_regex": _nullable(type="string"),
    "guided_choice": _nullable(**_STRINGS),
    "guided_grammar": _nullable(type="string"),
}
_STOP: Schema = {"anyOf": [_STRING, _STRINGS, {"type": "null"}]}
_FORMAT = _nullable(
    anyOf=[
        _object(["type"], type={"enum": ["text", "json_object"]}),
        _object(["type", "json_schema"], type={"const": "json_schema"}, json_schema={"type": "object"}),
        _object(["type", "grammar"], type={"const": "grammar"}, grammar=_STRING),
    ]
)
_OPENAI_SAMPLING: dict[str, Schema] = {
    **_SAMPLING,
    "max_tokens": _COUNT,
    "n": _nullable(type="integer", minimum=1, maximum=128),
    "stop": _STOP,
    "stream_options": _nullable(type="object"),
    "response_format": _FORMAT,
}
_FUNCTION = _object(["name"], name=_NAME, description=_STRING, parameters=_PARAMETERS, strict=_FLAG)
_CALL = _object(
    ["id", "type", "function"],
    id=_STRING,
    type={"const": "function"},
    function=_object(["name", "arguments"], name=_NAME, arguments=_STRING),
)
_MESSAGE: Schema = {
    "anyOf": [
        _object(["role", "content"], role={"enum": ["system", "developer", "user"]}, content=_texts("text")),
        _object(
            ["role"], role={"const": "assistant"}, content=_texts("text"), tool_calls={"type": "array", "items": _CALL}
        ),
        _object(
            ["role", "content", "tool_call_id"], role={"const": "tool"}, content=_texts("text"), tool_call_id=_STRING
        ),
    ]
}
CHAT = _object(
    ["model", "messages"],
    model=_MODEL,
    messages={"type": "array", "minItems": 1, "items": _MESSAGE},
    tools={"type": "array", "items": _object(["type", "function"], type={"const": "function"}, function=_FUNCTION)},
    tool_choice={"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
    parallel_tool_calls=_FLAG,
    chat_template_kwargs=_nullable(type="object"),
    add_generation_prompt=_FLAG,
    continue_final_message=_FLAG,
    logprobs=_FLAG,
    top_logprobs=_nullable(type="integer", minimum=0, maximum=20),
    max_completion_tokens=_COUNT,
    **_OPENAI_SAMPLING,
)
_IDS: Schema = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**31}}
COMPLETIONS = _object(
    ["model", "prompt"],
    model=_MODEL,
    prompt={
        "anyOf": [
            _STRING,
            {"type": "array", "minItems": 1, "items": _STRING},
            _IDS,
            {"type": "array", "minItems": 1, "items": _IDS},
        ]
    },
    add_special_tokens=_FLAG,
    best_of=_COUNT,
    echo=_FLAG,
    logprobs=_nullable(type="integer", minimum=0, maximum=20),
    **_OPENAI_SAMPLING,
)
_NAMED_CALL = {"call_id": _STRING, "name": _NAME, "namespace": _nullable(type="string")}
_ITEM: Schema = {
    "anyOf": [
        _object(["role", "content"], role={"enum": ["system", "developer", "user"]}, content=_texts("input_text")),
        _object(["role", "content"], role={"const": "assistant"}, content=_texts("output_text")),
        _object(["type", "summary"], type={"const": "reasoning"}, summary={"type": "array", "maxItems": 0}),
        _object(
            ["type", "call_id", "name", "arguments"],
            type={"const": "function_call"},
            arguments=_STRING,
            **_NAMED_CALL,
        ),
        _object(["type", "call_id", "name", "input"], type={"const": "custom_tool_call"}, input=_STRING, **_NAMED_CALL),
        _object(
            ["type", "call_id", "action"],
            type={"enum": ["local_shell_call", "shell_call"]},
            call_id=_STRING,
            action={"type": "object"},
        ),
        _object(["type", "role", "tools"], type={"const": "additional_tools"}, tools={"type": "array"}),
        _object(
            ["type", "call_id", "output"],
            type={"enum": ["function_call_output", "custom_tool_call_output"]},
            call_id=_STRING,
            output=_texts("input_text"),
        ),
        _object(["type", "id"], type={"const": "item_reference"}, id=_STRING),
    ]
}
_FLAT_TOOL = _object(
    ["type", "name"], type={"const": "function"}, name=_NAME, description=_STRING, parameters=_PARAMETERS, strict=_FLAG
)
RESPONSES = _object(
    ["model", "input"],
    model=_MODEL,
    input={"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": _ITEM}]},
    instructions=_nullable(type="string"),
    chat_template_kwargs=_nullable(type="object"),
    previous_response_id=_nullable(type="string"),
    tools={
        "type": "array",
        "items": {
            "anyOf": [
                _FLAT_TOOL,
                _object(["type", "name"], type={"const": "custom"}, name=_NAME, description=_STRING),
                _object(
                    ["type", "name", "tools"],
                    type={"const": "namespace"},
                    name=_NAME,
                    tools={"type": "array", "items": _FLAT_TOOL},
                ),
                _object(["type"], type={"enum": ["apply_patch", "local_shell", "shell", "web_search"]}),
            ]
        },
    },
    tool_choice={"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
    parallel_tool_calls=_FLAG,
    text=_nullable(type="object"),
    include=_nullable(type="array", items=_STRING),
    top_logprobs=_nullable(type="integer", minimum=0, maximum=20),
    max_output_tokens=_COUNT,
    stop=_STOP,
    metadata=_nullable(type="object"),
    store=_FLAG,
    **_SAMPLING,
)
_BLOCK: Schema = {
    "anyOf": [
        _object(["type", "text"], type={"const": "text"}, text=_STRING),
        _object(["type", "thinking"], type={"const": "thinking"}, thinking=_STRING),
        _object(
            ["type", "id", "name", "input"],
            type={"const": "tool_use"},
            id=_STRING,
            name=_NAME,
            input={"type": "object"},
        ),
        _object(["type", "tool_use_id"], type={"const": "tool_result"}, tool_use_id=_STRING, content=_texts("text")),
    ]
}
_PROMPT: dict[str, Schema] = {
    "model": _MODEL,
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": _object(
            ["role", "content"],
            role={"enum": ["user", "assistant"]},
            content={"anyOf": [_STRING, {"type": "array", "items": _BLOCK}]},
        ),
    },
    "system": _texts("text"),
    "tools": {
        "type": "array",
        "items": {
            "anyOf": [
                _object(["name", "input_schema"], name=_NAME, input_schema=_PARAMETERS),
                _object(["type", "name"], type={"enum": ["bash_20250124", "text_editor_20250728"]}, name=_NAME),
            ]
        },
    },
    "tool_choice": {"type": "object"},
    "output_config": _nullable(type="object"),
    "chat_template_kwargs": _nullable(type="object"),
    "output_format": _nullable(type="object"),
}
MESSAGES = _object(
    ["model", "messages", "max_tokens"],
    **_PROMPT,
    max_tokens={"type": "integer", "minimum": 1},
    stop_sequences=_nullable(type="array", items=_STRING),
    **_SAMPLING,
)
COUNT_TOKENS = _object(["model", "messages"], **_PROMPT)


def request_body(schema: Schema) -> dict[str, Any]:
    """What a route adds to the OpenAPI description of itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
