"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import retry

__all__ = ["retry"]
