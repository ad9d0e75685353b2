"""Training while rollouts go on: workers keep groups coming, the trainer takes the first ones that are ready."""

from art.pipeline_trainer.status import StatusReporter
from art.pipeline_trainer.trainer import PipelineTrainer
from art.pipeline_trainer.types import EvalFn, RolloutFn, ScenarioT, SingleRolloutFn, make_group_rollout_fn

__all__ = [
    "EvalFn",
    "PipelineTrainer",
    "RolloutFn",
    "ScenarioT",
    "SingleRolloutFn",
    "StatusReporter",
    "make_group_rollout_fn",
]
