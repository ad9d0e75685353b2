"""The shape of an error answer of the control API."""

from enum import StrEnum

from art.wire.base import Wire


class ErrorCode(StrEnum):
    """Machine-readable error code. The message is for people."""

    BAD_REQUEST = "bad_request"
    """A field has a wrong type or value; ``param`` names it."""
    UNAUTHORIZED = "unauthorized"
    """No key, or a key that this service does not know."""
    FORBIDDEN = "forbidden"
    """The key is valid but not for this endpoint, such as a rollout key on the control plane."""
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    """The request conflicts with what is stored, such as a name registered with another base model."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    """The prompt leaves no room for a completion. The rollout continues, marked as truncated."""
    MODEL_NOT_AVAILABLE = "model_not_available"
    """The base model could not be found or loaded."""
    BUSY = "busy"
    """Temporarily refused; ``Retry-After`` says when to retry."""
    ENGINE_FAILED = "engine_failed"
    """The inference engine died or does not answer; the message includes the tail of its log."""
    TRAINER_FAILED = "trainer_failed"
    """The trainer died or raised; the message includes the tail of its log."""
    STORAGE_FAILED = "storage_failed"
    """The disk is full or not writable."""
    VERSION_MISMATCH = "version_mismatch"
    INTERNAL = "internal"


class ApiErrorBody(Wire):
    """An error, for programs and for people."""

    code: ErrorCode
    message: str
    """What happened and how to fix it."""
    param: str | None = None
    """The dotted path of the offending field, if there is one."""


class ApiError(Wire):
    """The body of every error answer."""

    error: ApiErrorBody
