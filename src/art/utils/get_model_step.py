"""An older path of ``art.logs.directories``."""

from art.logs.directories import get_model_step

__all__ = ["get_model_step"]
