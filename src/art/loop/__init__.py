"""The training loop: groups of rollouts in flight, steps on those that are ready, and an account of both."""

from art.loop.advice import Preflight
from art.loop.preflight import preflight
from art.loop.train import EvalFn, RolloutFn, TrainingRun, train

__all__ = ["EvalFn", "Preflight", "RolloutFn", "TrainingRun", "preflight", "train"]
