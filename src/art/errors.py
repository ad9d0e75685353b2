"""The errors of the frontend. Those that a backend reported carry its code and the name of the offending field."""

from art.wire import ApiErrorBody, ErrorCode


class ARTError(Exception):
    """Base of the errors that ART raises on purpose.

    Attributes:
        detail: What happened and what to do about it.
        status_code: The HTTP status that says the same.

    >>> ARTError("The disk is full.", 507).status_code
    507
    """

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.detail = message
        self.status_code = status_code


class ForbiddenBucketCreationError(ARTError):
    """A bucket may not be created.

    >>> ForbiddenBucketCreationError("no").status_code
    403
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class UnsupportedLoRADeploymentProviderError(ARTError):
    """The provider does not serve LoRA adapters.

    >>> UnsupportedLoRADeploymentProviderError("no").status_code
    400
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class UnsupportedBaseModelDeploymentError(ARTError):
    """The provider does not serve the base model.

    >>> UnsupportedBaseModelDeploymentError("no").status_code
    400
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class LoRADeploymentTimedOutError(ARTError):
    """A deployment took too long.

    >>> LoRADeploymentTimedOutError("late").status_code
    504
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, 504)


class BackendError(ARTError):
    """A backend answered with an error.

    Attributes:
        code: What went wrong, for programs.
        param: Dotted path of the offending field, if there is one.
    """

    def __init__(
        self, message: str, status_code: int = 500, *, code: ErrorCode = ErrorCode.INTERNAL, param: str | None = None
    ) -> None:
        super().__init__(message, status_code)
        self.code = code
        self.param = param


class BadRequestError(BackendError):
    """A field has a wrong type or value; ``param`` names it."""


class UnauthorizedError(BackendError):
    """The key is missing or unknown to the backend."""


class ForbiddenError(BackendError):
    """The key is valid, but not for this."""


class NotFoundError(BackendError):
    """The backend knows no such model, job, rollout or version."""


class ConflictError(BackendError):
    """The request contradicts what the backend stores, such as a name registered with another base model."""


class ModelNotAvailableError(BackendError):
    """The base model could not be found or loaded."""


class BusyError(BackendError):
    """Temporarily refused."""

    retry_after_s: float | None = None
    """When trying again makes sense, if the backend said so."""


class EngineFailedError(BackendError):
    """The inference engine died or does not answer; the message shows the tail of its log."""


class TrainerFailedError(BackendError):
    """The trainer died or raised; the message shows the tail of its log."""


class StorageFailedError(BackendError):
    """The backend's disk is full or not writable."""


class VersionMismatchError(BackendError):
    """Frontend and backend speak different versions of the protocol."""


class JobInterruptedError(BackendError):
    """The backend stopped while it trained. Nothing of the step was kept; the same call may be made again."""


class BackendUnreachableError(BackendError):
    """Nothing answers at the backend's address."""


class BackendDiedError(BackendError):
    """The local backend's process ended; the message shows the tail of its log."""


class NoTrainingDataError(ARTError, ValueError):
    """What was given cannot be trained; the message names the group, the trajectory and the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class MissingExtraError(ARTError, ImportError):
    """An optional part is not installed.

    Args:
        what: What was wanted.
        extra: The extra that brings it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed. Install it: pip install 'art-trainer[{extra}]'", 501)


_BY_CODE: dict[ErrorCode, type[BackendError]] = {
    ErrorCode.BAD_REQUEST: BadRequestError,
    ErrorCode.UNAUTHORIZED: UnauthorizedError,
    ErrorCode.FORBIDDEN: ForbiddenError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.CONFLICT: ConflictError,
    ErrorCode.MODEL_NOT_AVAILABLE: ModelNotAvailableError,
    ErrorCode.BUSY: BusyError,
    ErrorCode.ENGINE_FAILED: EngineFailedError,
    ErrorCode.TRAINER_FAILED: TrainerFailedError,
    ErrorCode.STORAGE_FAILED: StorageFailedError,
    ErrorCode.VERSION_MISMATCH: VersionMismatchError,
}

INFRASTRUCTURE_CODES = frozenset({ErrorCode.ENGINE_FAILED, ErrorCode.TRAINER_FAILED, ErrorCode.STORAGE_FAILED})
"""Codes that say the service is broken, whatever the agent did."""


def from_api_error(body: ApiErrorBody, status_code: int) -> BackendError:
    """Turn an error answer of the control API into the exception that carries it."""
    kind = _BY_CODE.get(body.code, BackendError)
    return kind(body.message, status_code, code=body.code, param=body.param)
