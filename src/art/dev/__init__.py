"""Settings for those who look under the bonnet. All keys are optional; those without effect here warn when given."""

from art.dev.model import (
    EngineArgs,
    InitArgs,
    InternalModelConfig,
    PeftArgs,
    TinkerArgs,
    TinkerNativeArgs,
    TinkerTrainingClientArgs,
    TrainerArgs,
)
from art.dev.openai_server import OpenAIServerConfig, ServerArgs, get_openai_server_config
from art.dev.train import TrainConfig, TrainSFTConfig
from art.dev.validate import is_dedicated_mode, validate_dedicated_config

__all__ = [
    "EngineArgs",
    "InitArgs",
    "InternalModelConfig",
    "OpenAIServerConfig",
    "PeftArgs",
    "ServerArgs",
    "TinkerArgs",
    "TinkerNativeArgs",
    "TinkerTrainingClientArgs",
    "TrainConfig",
    "TrainSFTConfig",
    "TrainerArgs",
    "get_openai_server_config",
    "is_dedicated_mode",
    "validate_dedicated_config",
]
