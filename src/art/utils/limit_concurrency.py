"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import limit_concurrency

__all__ = ["limit_concurrency"]
