"""An older path of ``art.compat.guided_completion``."""

from art.compat.guided_completion import get_guided_completion_params

__all__ = ["get_guided_completion_params"]
