"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import strip_logprobs

__all__ = ["strip_logprobs"]
