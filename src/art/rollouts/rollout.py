"""One run of an agent, captured under its own key if the model is trainable."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from openai.types.chat.chat_completion import Choice

from art.capture.scopes import recording
from art.trajectories import History, Trajectory
from art.wire import RolloutTree, TreeNode

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["Rollout"]


@dataclass(frozen=True)
class Rollout:
    """The endpoint of one agent run. Created by ``model.rollout()``.

    >>> async with model.rollout() as r:
    ...     answer = await r.openai_client().chat.completions.create(
    ...         model=model.get_inference_name(), messages=[{"role": "user", "content": "Hi."}], max_tokens=4
    ...     )
    ...     trajectory = await r.fill(r.trajectory(reward=1.0))
    >>> trajectory.messages_and_choices[1] == answer.choices[0]
    True
    """

    id: str | None
    """``None`` for a model that is not trained: nothing is captured at its endpoint."""
    base_url: str
    """Ends with ``/v1``, as OpenAI clients expect."""
    api_key: str
    """Valid only for this rollout's endpoint. For a model that is not trained, the model's own key."""
    _client: "AsyncOpenAI"
    _read: Callable[[], Awaitable[list[History]]]
    """Tells the conversations so far."""

    def openai_client(self) -> "AsyncOpenAI":
        """Return a client for this rollout's endpoint. Any other client works too, in any language."""
        return self._client

    @property
    def environment(self) -> dict[str, str]:
        """The variables that clients of OpenAI, LangChain, litellm and Anthropic read, for a process of the agent's own:
        ``subprocess.run(agent, env=os.environ | rollout.environment)``."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
        }

    def trajectory(self, reward: float = 0.0, **fields: Any) -> Trajectory:
        """Return the scored run; training uses everything sampled in it.

        While it is open (``with``), code that builds its own clients from the variables of ``environment`` talks to this
        rollout; see ``art.rollouts.environment`` for what sees them.

        Args:
            fields: Further fields of ``Trajectory``.
        """
        # A token of the user's own would go before the key.
        variables = {**self.environment, "ANTHROPIC_AUTH_TOKEN": None}
        return Trajectory(reward=reward, rollout_id=self.id, **fields).with_environment(variables)

    async def fill(self, trajectory: Trajectory) -> Trajectory:
        """Fill a trajectory with the conversations captured so far, for judges and logs.

        Training needs none of it. Agents that use a client of the model, or append what they say themselves, have it
        already.

        Args:
            trajectory: Its conversations are replaced, by one for each path through the rollout: the first begun first. Of a
                model that is not trained only the calls of clients that record (``art.capture``) are known, and the
                conversations stay as they are where there was none.
        """
        histories = await self._read()
        return fill_in(trajectory, histories) if histories or self.id is not None else trajectory


def fill_in(trajectory: Trajectory, histories: Sequence[History]) -> Trajectory:
    """Replace the conversations of a trajectory by those of a rollout, the first begun first."""
    main = histories[0] if histories else History(messages_and_choices=[])
    trajectory.messages_and_choices, trajectory.tools = main.messages_and_choices, main.tools
    trajectory.additional_histories = list(histories[1:])
    return trajectory


@asynccontextmanager
async def record_rollout(client: "AsyncOpenAI") -> AsyncGenerator[Rollout]:
    """A run at an endpoint that captures nothing: what recording clients do inside is all that is known of it."""
    seen = Trajectory()

    async def read() -> list[History]:
        main = History(messages_and_choices=seen.messages_and_choices, tools=seen.tools)
        return [main, *seen.additional_histories] if seen.messages_and_choices else []

    with recording(seen):
        yield Rollout(None, str(client.base_url).rstrip("/"), client.api_key, client, read)


def read_conversations(tree: RolloutTree) -> list[History]:
    """The conversations of a rollout: one for each sampled turn that no other turn continues."""
    nodes = {node.id: node for node in tree.nodes}
    continued = {node.parent for node in tree.nodes if not node.sampled}
    histories: list[History] = []
    for node in tree.nodes:
        if not node.sampled or node.id in continued:
            continue
        path: list[TreeNode] = [node]
        while (parent := path[-1].parent) is not None:
            path.append(nodes[parent])
        items: list[Any] = []
        for step in reversed(path):
            items += [_choice(step, tree.id)] if step.sampled else [_message(message) for message in step.messages]
        histories.append(History(messages_and_choices=items, tools=cast(Any, path[-1].tools)))
    return histories


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message; the text that a completion continued becomes a user's."""
    return {"role": "user", "content": message["content"]} if message["role"] == "text" else message


def _choice(node: TreeNode, rollout: str) -> Choice:
    """A sampled message as the gateway answers it in chat completions; a text completion too."""
    (message,) = node.messages
    shown = {key: message[key] for key in ("content", "reasoning_content", "tool_calls") if key in message}
    reference = {"turn": node.id, "rollout": rollout, "policy_version": node.policy_version}
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": node.finish_reason,
            "message": {"role": "assistant", **shown},
            "logprobs": None,
            "art": reference,
        }
    )
