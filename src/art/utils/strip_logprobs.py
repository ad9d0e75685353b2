"""Making what a model sampled small enough to store."""

import copy
import logging
from typing import Any, cast

_log = logging.getLogger(__name__)


def strip_logprobs(obj: Any) -> Any:
    """A copy of ``obj`` without log-probabilities: dict keys dropped, attributes set to ``None``, at any depth.

    Where ``obj`` cannot be copied it is returned as it is, with a warning in the log.

    >>> strip_logprobs({"content": "Hi.", "logprobs": [1]})
    {'content': 'Hi.'}
    """
    try:
        twin = copy.deepcopy(obj)
    except Exception as error:  # noqa: BLE001
        _log.warning("Failed to deepcopy object in strip_logprobs: %s. Returning original object unchanged.", error)
        return obj
    return _strip(twin)


def _strip(value: Any) -> Any:
    kind = value.__class__
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {key: _strip(inner) for key, inner in items if key != "logprobs"}
    if isinstance(value, (list, tuple)):
        members = [_strip(inner) for inner in cast(list[Any], value)]
        return (
            kind(*members) if hasattr(kind, "_fields") else kind(members)
        )  # a named tuple takes its fields one by one
    if hasattr(value, "__dict__") and not isinstance(value, type):
        attributes: dict[str, Any] = dict(value.__dict__)
        for name, inner in attributes.items():
            setattr(value, name, None if name == "logprobs" else _strip(inner))
    return value
