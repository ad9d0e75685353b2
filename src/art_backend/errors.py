"""The errors of the service. Each knows its code and HTTP status; each surface gives it its own protocol's shape."""

from art.wire import ErrorCode


class ServiceError(Exception):
    """An error with a message meant for the caller.

    Args:
        message: What happened and what to do about it.
        param: Dotted path of the offending field, if there is one.
        retry_after_s: For ``BUSY``: seconds after which trying again makes sense.
        permanent: Whether trying again makes no sense although the status says so.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    status: int = 500

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        permanent: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.permanent = permanent


class BadRequestError(ServiceError):
    code = ErrorCode.BAD_REQUEST
    status = 400


class ContextOverflowError(BadRequestError):
    """The prompt leaves no room for a completion, in the code and words by which clients know it."""

    code = ErrorCode.CONTEXT_LENGTH_EXCEEDED

    def __init__(self, limit: int, param: str) -> None:
        super().__init__(
            f"Your input exceeds the context window of this model ({limit} tokens). Shorten the input, or register the model "
            "with a larger max_seq_length.",
            param=param,
        )


class UnauthorizedError(ServiceError):
    code = ErrorCode.UNAUTHORIZED
    status = 401


class ForbiddenError(ServiceError):
    code = ErrorCode.FORBIDDEN
    status = 403


class NotFoundError(ServiceError):
    code = ErrorCode.NOT_FOUND
    status = 404


class ConflictError(ServiceError):
    code = ErrorCode.CONFLICT
    status = 409


class ModelNotAvailableError(ServiceError):
    code = ErrorCode.MODEL_NOT_AVAILABLE
    status = 422


class BusyError(ServiceError):
    code = ErrorCode.BUSY
    status = 429


class EngineFailedError(ServiceError):
    code = ErrorCode.ENGINE_FAILED
    status = 503


class TrainerFailedError(ServiceError):
    code = ErrorCode.TRAINER_FAILED
    status = 503


class StorageFailedError(ServiceError):
    code = ErrorCode.STORAGE_FAILED
    status = 507
