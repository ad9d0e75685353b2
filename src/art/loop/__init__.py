"""The training loop: groups of rollouts in flight, training steps on those that are ready, and their display."""

from art.loop.advice import Preflight
from art.loop.preflight import preflight
from art.loop.train import EvalFn, RolloutFn, TrainingRun, train

__all__ = ["EvalFn", "Preflight", "RolloutFn", "TrainingRun", "preflight", "train"]
