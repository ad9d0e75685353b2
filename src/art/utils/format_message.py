"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import format_message

__all__ = ["format_message"]
