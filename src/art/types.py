"""Types of trajectories, and small inputs and results of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_union_param import ChatCompletionToolUnionParam
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, RootModel, SkipValidation
from pydantic_core import CoreSchema, core_schema

__all__ = [
    "Choice",
    "Exchange",
    "ExchangeRequest",
    "LocalTrainResult",
    "Message",
    "MessageOrChoice",
    "Messages",
    "MessagesAndChoices",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrajectoryExchanges",
    "Verbosity",
]


class _Untouched:
    """Lets dicts and SDK objects pass by identity, and refuses what can be neither a message nor a choice."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_message_or_choice)


def _message_or_choice(item: Any) -> Any:
    if isinstance(item, (Mapping, BaseModel)):
        return item  # pyright: ignore[reportUnknownVariableType]
    raise ValueError(f"expected a message dict or a sampled Choice, got {type(item).__name__}")


Message = Annotated[ChatCompletionMessageParam, SkipValidation]
"""One chat message, as the OpenAI API accepts it. Never coerced, never copied."""

MessageOrChoice = Annotated[ChatCompletionMessageParam | Choice, _Untouched()]
"""A message that the agent wrote, or the choice that a model sampled. Choices are what training learns from."""

Messages = list[Message]
MessagesAndChoices = list[MessageOrChoice]
Tools = list[Annotated[ChatCompletionToolUnionParam, _Untouched()]]


class ExchangeRequest(RootModel[dict[str, Any]]):
    """The request body: ``request["model"]``; ``request.root`` is the whole dict."""

    def __getitem__(self, key: str) -> Any:
        return self.root[key]

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self.root.get(key, default)


class Exchange(BaseModel):
    """One call that was answered."""

    request: ExchangeRequest
    response: SkipValidation[Any]
    """An object of the SDK, such as ``ChatCompletion``; a stream is assembled into the equivalent object."""
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


Verbosity = Literal[0, 1, 2]


class TrainConfig(BaseModel):
    """The two training options that every backend supports.

    >>> TrainConfig(learning_rate=1e-5)
    TrainConfig(learning_rate=1e-05, kl_penalty_coef=0.0)
    """

    model_config = ConfigDict(extra="forbid")

    learning_rate: float = 5e-6
    kl_penalty_coef: float = 0.0


class TrainSFTConfig(BaseModel):
    """Options of supervised fine-tuning.

    >>> TrainSFTConfig(learning_rate=[2e-4, 1e-4], batch_size=4).batch_size
    4
    """

    model_config = ConfigDict(extra="forbid")

    learning_rate: float | list[float] = 5e-5
    """One rate, or one per batch."""
    batch_size: int | Literal["auto"] = "auto"
    """Trajectories per optimiser step; ``"auto"`` means 2."""


@dataclass
class TrainResult:
    """The result of a training step.

    >>> TrainResult(step=3, metrics={"loss/policy": 0.5}).step
    3
    """

    step: int
    """The policy version now served."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    checkpoint_path: str | None = None
    """Directory of the step's checkpoint on the backend's machine."""


LocalTrainResult = TrainResult
