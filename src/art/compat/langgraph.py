"""Agents of LangGraph and LangChain: their chat models talk to the rollout that is running.

Build the agent's model with ``init_chat_model``:

    async def agent(scenario: str) -> art.Trajectory:
        graph = create_react_agent(art.langgraph.init_chat_model(temperature=1.0), tools)
        state = await graph.ainvoke({"messages": [("user", scenario)]})
        return art.Trajectory(reward=score(state))

Wrap the agent, and it is a rollout:

    rollout = art.langgraph.wrap_rollout(model, agent)
    groups = await art.gather_trajectory_groups(
        art.TrajectoryGroup(rollout(scenario) for _ in range(8)) for scenario in scenarios
    )
"""

import functools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ParamSpec

from art.capture import async_http_client, http_client
from art.errors import load_extra
from art.model import Model
from art.trajectories import Trajectory

P = ParamSpec("P")


@dataclass(frozen=True)
class _Endpoint:
    """Where the chat models of a rollout find theirs."""

    model: str
    base_url: str
    api_key: str
    clients: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments that make a chat model record its calls."""


_endpoint: ContextVar[_Endpoint | None] = ContextVar("art_langgraph_endpoint", default=None)


def wrap_rollout(model: Model[Any, Any], fn: Callable[P, Awaitable[Trajectory]]) -> Callable[P, Awaitable[Trajectory]]:
    """Make an agent's function a rollout of ``model``: chat models of ``init_chat_model`` talk to it, and are captured.

    Args:
        model: Registered, if it is a ``TrainableModel``.
        fn: Runs the agent once and returns its scored trajectory. If that holds no conversation, it is given those that
            were captured.

    >>> async def agent(scenario):
    ...     return art.Trajectory(reward=1.0)  # its chat models come from init_chat_model()
    >>> (await wrap_rollout(model, agent)("a")).reward
    1.0
    """

    @functools.wraps(fn)
    async def rollout(*args: P.args, **kwargs: P.kwargs) -> Trajectory:
        async with model.rollout() as run, AsyncExitStack() as opened:
            endpoint = _Endpoint(model.get_inference_name(), run.base_url, run.api_key)
            if run.id is None:  # its calls are recorded in this process
                endpoint.clients["http_async_client"] = await opened.enter_async_context(async_http_client())
                endpoint.clients["http_client"] = opened.enter_context(http_client())
            with _Placed(endpoint):
                trajectory = await fn(*args, **kwargs)
            trajectory.rollout_id = run.id or trajectory.rollout_id
            if not trajectory.messages_and_choices:
                await run.fill(trajectory)
            return trajectory

    return rollout


class _Placed:
    """Makes an endpoint the current one inside."""

    def __init__(self, endpoint: _Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        self._token = _endpoint.set(self._endpoint)

    def __exit__(self, *_: object) -> None:
        _endpoint.reset(self._token)


def init_chat_model(model: str | None = None, *, model_provider: str | None = "openai", **options: Any) -> Any:
    """Return a ``langchain_openai.ChatOpenAI`` for the current rollout. Call it in each rollout: each has its own key.

    Args:
        model: Another name than the model's own, such as that of an earlier version, ``name@step``.
        model_provider: Only ``"openai"`` or ``None``: rollouts speak OpenAI's protocol.
        options: Further arguments of ``ChatOpenAI``; ``base_url`` and ``api_key`` too, for a model elsewhere.

    Raises:
        RuntimeError: No rollout is running.
        ValueError: Another provider, or fields that are configured later, was asked for.
        MissingExtraError: ``langchain-openai`` is not installed.
    """
    if model_provider not in (None, "openai"):
        raise ValueError(
            f"model_provider={model_provider!r}: a rollout speaks OpenAI's protocol. Leave model_provider out; for a model of "
            "another provider use langchain.chat_models.init_chat_model."
        )
    for name in ("configurable_fields", "config_prefix"):
        if options.pop(name, None) is not None:
            raise ValueError(
                f"{name} cannot be set: a chat model belongs to one rollout. Call init_chat_model in each."
            )
    current = _endpoint.get()
    if current is None:
        raise RuntimeError("No rollout is running: call init_chat_model inside a function given to wrap_rollout.")
    kind = load_extra("langchain_openai", "langchain-openai", "langgraph").ChatOpenAI
    # While weights change a call waits, longer than LangChain's default limit between chunks.
    placed = {"base_url": current.base_url, "api_key": current.api_key, "stream_chunk_timeout": None}
    clients = {} if "base_url" in options else current.clients
    return kind(model=model or current.model, **{**placed, **clients, **options})
