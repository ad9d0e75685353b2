"""Errors of the frontend. Errors reported by a backend carry its code and the offending field."""

from importlib import import_module
from typing import Any

from art.wire import ApiErrorBody, ErrorCode


class ARTError(Exception):
    """Base class of ART's errors.

    Attributes:
        detail: What happened and how to fix it.
        status_code: The corresponding HTTP status.
    """

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.detail = message
        self.status_code = status_code


class BackendError(ARTError):
    """A backend answered with an error.

    Attributes:
        code: Machine-readable error code.
        param: Dotted path of the offending field, if there is one.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init_subclass__(cls, *, code: ErrorCode | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if code is not None:
            cls.code = code
            _BY_CODE[code] = cls

    def __init__(
        self, message: str, status_code: int = 500, *, code: ErrorCode | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, status_code)
        if code is not None:
            self.code = code
        self.param = param


_BY_CODE: dict[ErrorCode, type[BackendError]] = {}


class BadRequestError(BackendError, code=ErrorCode.BAD_REQUEST):
    """A field has a wrong type or value; ``param`` names it.

    >>> try:
    ...     await backend.train(model, groups, advantage="nowhere:best")
    ... except BadRequestError as error:
    ...     print(error.param)
    options.advantage
    """


_BY_CODE[ErrorCode.CONTEXT_LENGTH_EXCEEDED] = BadRequestError


class UnauthorizedError(BackendError, code=ErrorCode.UNAUTHORIZED):
    """The key is missing or unknown to the backend."""


class ForbiddenError(BackendError, code=ErrorCode.FORBIDDEN):
    """The key is valid, but not for this."""


class NotFoundError(BackendError, code=ErrorCode.NOT_FOUND):
    """The backend knows no such model, job, rollout or version."""


class ConflictError(BackendError, code=ErrorCode.CONFLICT):
    """The request conflicts with what the backend stores, such as a name registered with another base model."""


class ModelNotAvailableError(BackendError, code=ErrorCode.MODEL_NOT_AVAILABLE):
    """The base model could not be found or loaded."""


class BusyError(BackendError, code=ErrorCode.BUSY):
    """The backend refused for now."""

    retry_after_s: float | None = None
    """When to retry, if the backend said so."""


class EngineFailedError(BackendError, code=ErrorCode.ENGINE_FAILED):
    """The inference engine died or does not answer; the message includes the tail of its log."""


class TrainerFailedError(BackendError, code=ErrorCode.TRAINER_FAILED):
    """The trainer died or raised; the message includes the tail of its log."""


class StorageFailedError(BackendError, code=ErrorCode.STORAGE_FAILED):
    """The backend's disk is full or not writable."""


class VersionMismatchError(BackendError, code=ErrorCode.VERSION_MISMATCH):
    """Frontend and backend speak different versions of the protocol."""


class JobInterruptedError(BackendError):
    """The backend stopped during training. The step was not saved; repeat the call."""


class BackendUnreachableError(BackendError):
    """Nothing answers at the backend's address."""


class BackendDiedError(BackendError):
    """The local backend's process ended; the message includes the tail of its log."""


class NoTrainingDataError(ARTError, ValueError):
    """The data cannot be trained on; the message names the group, the trajectory and the reason.

    >>> said = art.Trajectory(messages_and_choices=[{"role": "assistant", "content": "Typed by hand."}])
    >>> try:
    ...     await backend.train(model, [art.TrajectoryGroup([said])])
    ... except NoTrainingDataError as error:
    ...     print(error)
    No suitable data in group 0, trajectory 0: turn 0 is a plain dict instead of the sampled Choice...
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class MissingExtraError(ARTError, ImportError):
    """An optional dependency is not installed.

    Args:
        what: The missing dependency, and what needs it.
        extra: The extra that installs it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed. Install it: pip install 'art-trainer[{extra}]'", 501)


def load_extra(package: str, what: str, extra: str) -> Any:
    """Import a package that is not always installed, when it is first needed.

    Args:
        what: What needs it, for the error.
        extra: The extra that brings it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(what, extra) from error


INFRASTRUCTURE_CODES = frozenset({ErrorCode.ENGINE_FAILED, ErrorCode.TRAINER_FAILED, ErrorCode.STORAGE_FAILED})
"""Codes that say the service is broken, whatever the agent did."""


def from_api_error(body: ApiErrorBody, status_code: int) -> BackendError:
    """Turn an error answer of the control API into the exception that carries it."""
    kind = _BY_CODE.get(body.code, BackendError)
    return kind(body.message, status_code, code=body.code, param=body.param)
