"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import log_http_errors

__all__ = ["log_http_errors"]
