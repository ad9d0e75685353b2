"""The contract between the frontend and the backend.

Every request, response and event that crosses the wire is a pydantic model in this package. It depends on pydantic
alone, so that the frontend stays light, the service stays honest, and other languages can generate clients from the
OpenAPI description.
"""

from art.wire.base import Name
from art.wire.errors import ApiError, ApiErrorBody, ErrorCode
from art.wire.jobs import TERMINAL_STATES, Job, JobEvent, JobKind, JobState
from art.wire.models import (
    Checkpoint,
    CheckpointList,
    LoraSpec,
    MetricHistory,
    MetricRow,
    ModelInfo,
    ModelList,
    PruneCheckpoints,
    RegisterModel,
)
from art.wire.rollouts import (
    CreateRollout,
    RolloutInfo,
    RolloutKind,
    RolloutRows,
    RolloutTree,
    StructuredSpan,
    TokenRow,
    TreeNode,
)
from art.wire.service import API_PREFIX, PROTOCOL_VERSION, Health, ProcessHealth, Version
from art.wire.training import (
    Algorithm,
    Conversation,
    Example,
    KlPlace,
    Optimizer,
    Overlong,
    Schedule,
    SftOptions,
    TrainerKind,
    TrainGroup,
    TrainOptions,
    TrainProgress,
    TrainRequest,
    TrainResult,
    TrainSftRequest,
    TrainTrajectory,
)

__all__ = [
    "API_PREFIX",
    "PROTOCOL_VERSION",
    "TERMINAL_STATES",
    "Algorithm",
    "ApiError",
    "ApiErrorBody",
    "Checkpoint",
    "CheckpointList",
    "Conversation",
    "CreateRollout",
    "ErrorCode",
    "Example",
    "Health",
    "Job",
    "JobEvent",
    "JobKind",
    "JobState",
    "KlPlace",
    "LoraSpec",
    "MetricHistory",
    "MetricRow",
    "ModelInfo",
    "ModelList",
    "Name",
    "Optimizer",
    "Overlong",
    "ProcessHealth",
    "PruneCheckpoints",
    "RegisterModel",
    "RolloutInfo",
    "RolloutKind",
    "RolloutRows",
    "RolloutTree",
    "Schedule",
    "SftOptions",
    "StructuredSpan",
    "TokenRow",
    "TrainGroup",
    "TrainOptions",
    "TrainProgress",
    "TrainRequest",
    "TrainResult",
    "TrainSftRequest",
    "TrainTrajectory",
    "TrainerKind",
    "TreeNode",
    "Version",
]
