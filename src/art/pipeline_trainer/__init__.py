"""An older path of ``art.compat.pipeline``."""

from art.compat.pipeline import (
    EvalFn,
    PipelineTrainer,
    RolloutFn,
    ScenarioT,
    SingleRolloutFn,
    StatusReporter,
    make_group_rollout_fn,
)

__all__ = [
    "EvalFn",
    "PipelineTrainer",
    "RolloutFn",
    "ScenarioT",
    "SingleRolloutFn",
    "StatusReporter",
    "make_group_rollout_fn",
]
