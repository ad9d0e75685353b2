"""The model calls of a trajectory as they were made: request and response, in the SDK's own types."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, RootModel, SkipValidation


class ExchangeRequest(RootModel[dict[str, Any]]):
    """The body that was sent: ``request["model"]``; ``request.root`` is the whole dict.

    >>> request = ExchangeRequest({"model": "m", "messages": []})
    >>> request["model"], request.root["messages"], request.get("tools")
    ('m', [], None)
    """

    def __getitem__(self, key: str) -> Any:
        return self.root[key]

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self.root.get(key, default)


class Exchange(BaseModel):
    """One call that was answered.

    >>> with art.Trajectory() as t:
    ...     _ = await model.openai_client().chat.completions.create(
    ...         model=model.get_inference_name(), messages=[{"role": "user", "content": "Hi."}], max_tokens=4
    ...     )
    >>> t.exchanges.chat_completions[0].request["max_tokens"]
    4
    """

    request: ExchangeRequest
    response: SkipValidation[Any]
    """An object of the SDK, such as ``ChatCompletion``; a stream is put together to what it would be without one."""
    model: str
    """As the request names it."""
    start_time: datetime
    end_time: datetime


class TrajectoryExchanges(BaseModel):
    """The calls of a trajectory by protocol, in order. False if there are none.

    >>> bool(art.Trajectory().exchanges)
    False
    """

    chat_completions: list[Exchange] = []
    completions: list[Exchange] = []
    responses: list[Exchange] = []
    messages: list[Exchange] = []

    def of(self, protocol: str) -> list[Exchange]:
        """The list by its name."""
        return {
            "chat_completions": self.chat_completions,
            "completions": self.completions,
            "responses": self.responses,
            "messages": self.messages,
        }[protocol]

    def __bool__(self) -> bool:
        return bool(self.chat_completions or self.completions or self.responses or self.messages)
