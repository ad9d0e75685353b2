"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import dim, err, info, ok, step, warn

__all__ = ["dim", "err", "info", "ok", "step", "warn"]
