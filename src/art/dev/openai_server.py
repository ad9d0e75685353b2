"""The configuration of an OpenAI-compatible inference server."""

import json
from pathlib import PurePath
from typing import Any, TypedDict, cast

from art.dev.model import EngineArgs


class ServerArgs(TypedDict, total=False):
    """Arguments of the HTTP server in front of the engine.

    >>> ServerArgs(port=8000)
    {'port': 8000}
    """

    host: str | None
    port: int
    api_key: str | None
    lora_modules: list[str]
    chat_template: str | None
    enable_auto_tool_choice: bool
    tool_call_parser: str | None
    reasoning_parser: str | None
    return_tokens_as_token_ids: bool
    max_log_len: int | None
    ssl_keyfile: str | None
    ssl_certfile: str | None


class OpenAIServerConfig(TypedDict, total=False):
    """Settings of the server, its engine, and where it logs.

    >>> config: OpenAIServerConfig = {"server_args": {"port": 8000}}
    """

    log_file: str
    server_args: ServerArgs
    engine_args: EngineArgs


def get_openai_server_config(
    model_name: str,
    base_model: str,
    log_file: str,
    lora_path: str | None = None,
    config: OpenAIServerConfig | None = None,
) -> OpenAIServerConfig:
    """Merge a user's settings over the defaults.

    Args:
        lora_path: Directory of an adapter whose last component is its step; it is served as ``{model_name}@{step}``.
        config: Settings that override the defaults.

    >>> get_openai_server_config("m", "base", "server.log", config={"server_args": {"port": 8000}})["server_args"]["port"]
    8000
    """
    given: OpenAIServerConfig = config or {}
    server_args: dict[str, Any] = {
        "api_key": "default",
        "return_tokens_as_token_ids": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
    }
    engine_args: dict[str, Any] = {
        "model": base_model,
        "served_model_name": base_model if lora_path else model_name,
        "generation_config": "vllm",
    }
    if lora_path:
        step = int(PurePath(lora_path).name)
        server_args["lora_modules"] = [json.dumps({"name": f"{model_name}@{step}", "path": lora_path})]
    return OpenAIServerConfig(
        log_file=given.get("log_file", log_file),
        server_args=cast(ServerArgs, {**server_args, **given.get("server_args", {})}),
        engine_args=cast(EngineArgs, {**engine_args, **given.get("engine_args", {})}),
    )
