"""Helpers for scripts around a training run. Each function is also found in the module of its name."""

from art.utils.format_message import format_message
from art.utils.get_model_step import get_model_step
from art.utils.get_repo_root_path import get_repo_root_path
from art.utils.iterate_dataset import iterate_dataset
from art.utils.limit_concurrency import limit_concurrency
from art.utils.log_http_errors import log_http_errors
from art.utils.record_provenance import record_provenance
from art.utils.retry import retry
from art.utils.strip_logprobs import strip_logprobs

# Imported last and by name, the functions stand before the modules that they share their names with.
__all__ = [
    "format_message",
    "get_model_step",
    "get_repo_root_path",
    "iterate_dataset",
    "limit_concurrency",
    "log_http_errors",
    "record_provenance",
    "retry",
    "strip_logprobs",
]
