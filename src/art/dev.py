"""Settings by the names that scripts import. Keys without effect here warn when a model is registered with them."""

from typing import Any

from art.backend.options import SftKeywords as TrainSFTConfig
from art.backend.options import TrainKeywords as TrainConfig
from art.backend.registration import (
    InitArgs,
    InternalModelConfig,
    PeftArgs,
    is_dedicated_mode,
    validate_dedicated_config,
)

EngineArgs = TrainerArgs = ServerArgs = OpenAIServerConfig = dict[str, Any]

__all__ = [
    "EngineArgs",
    "InitArgs",
    "InternalModelConfig",
    "OpenAIServerConfig",
    "PeftArgs",
    "ServerArgs",
    "TrainConfig",
    "TrainSFTConfig",
    "TrainerArgs",
    "is_dedicated_mode",
    "validate_dedicated_config",
]
