"""An older path of ``art.compat.pipeline``."""

from art.compat.pipeline import PipelineTrainer

__all__ = ["PipelineTrainer"]
