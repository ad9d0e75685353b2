"""One run of an agent, captured under a key of its own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.trajectories import Trajectory

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(frozen=True)
class Rollout:
    """Where the agent of one run finds its model. ``model.rollout()`` makes it."""

    id: str
    base_url: str
    """Ends with ``/v1``, as OpenAI's clients expect it."""
    api_key: str
    """Opens this rollout's endpoint and nothing else."""
    _client: "AsyncOpenAI"

    def openai_client(self) -> "AsyncOpenAI":
        """A client of this rollout's endpoint. Any other client works as well, in any language."""
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
        """The scored run; training takes all that was sampled in it.

        While it is open (``with``), code that builds its own clients from the variables of ``environment`` talks to this
        rollout; see ``art.environment`` for what sees them.

        Args:
            fields: Further fields of ``Trajectory``.
        """
        # A token of the user's own would go before the key.
        variables = {**self.environment, "ANTHROPIC_AUTH_TOKEN": None}
        return Trajectory(reward=reward, rollout_id=self.id, **fields).with_environment(variables)
