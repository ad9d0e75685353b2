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

    >>> BackendError("Must be positive.", 400, param="options.epsilon").param
    'options.epsilon'
    """

    def __init__(
        self, message: str, status_code: int = 500, *, code: ErrorCode = ErrorCode.INTERNAL, param: str | None = None
    ) -> None:
        super().__init__(message, status_code)
        self.code = code
        self.param = param


class BadRequestError(BackendError):
    """A field has a wrong type or value; ``param`` names it.

    >>> try:
    ...     await backend.train(model, groups, advantage="nowhere:best")
    ... except BadRequestError as error:
    ...     print(error.param)
    options.advantage
    """


class UnauthorizedError(BackendError):
    """The key is missing or unknown to the backend.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.UNAUTHORIZED, message="The key is not known."), 401)
    UnauthorizedError('The key is not known.')
    """


class ForbiddenError(BackendError):
    """The key is valid, but not for this.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.FORBIDDEN, message="A rollout's key cannot train."), 403)
    ForbiddenError("A rollout's key cannot train.")
    """


class NotFoundError(BackendError):
    """The backend knows no such model, job, rollout or version.

    >>> try:
    ...     await backend.get_model("examples", "nobody")
    ... except NotFoundError as error:
    ...     print(error.status_code)
    404
    """


class ConflictError(BackendError):
    """The request contradicts what the backend stores, such as a name registered with another base model.

    >>> other = art.TrainableModel(name="learner", project="examples", base_model="another")
    >>> try:
    ...     await other.register(backend)
    ... except ConflictError as error:
    ...     print(error.status_code)
    409
    """


class ModelNotAvailableError(BackendError):
    """The base model could not be found or loaded.

    >>> lost = art.TrainableModel(name="lost", project="examples", base_model="./nowhere")
    >>> try:
    ...     await lost.register(backend)
    ... except ModelNotAvailableError as error:
    ...     print(error.code.value)
    model_not_available
    """


class BusyError(BackendError):
    """Temporarily refused.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.BUSY, message="Come back later."), 429).retry_after_s is None
    True
    """

    retry_after_s: float | None = None
    """When trying again makes sense, if the backend said so."""


class EngineFailedError(BackendError):
    """The inference engine died or does not answer; the message shows the tail of its log.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.ENGINE_FAILED, message="The engine died."), 503)
    EngineFailedError('The engine died.')
    """


class TrainerFailedError(BackendError):
    """The trainer died or raised; the message shows the tail of its log.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.TRAINER_FAILED, message="The trainer died."), 500)
    TrainerFailedError('The trainer died.')
    """


class StorageFailedError(BackendError):
    """The backend's disk is full or not writable.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.STORAGE_FAILED, message="The disk is full."), 507).status_code
    507
    """


class VersionMismatchError(BackendError):
    """Frontend and backend speak different versions of the protocol.

    >>> VersionMismatchError("The backend speaks protocol 2.", 400, code=ErrorCode.VERSION_MISMATCH).code.value
    'version_mismatch'
    """


class JobInterruptedError(BackendError):
    """The backend stopped while it trained. Nothing of the step was kept; the same call may be made again.

    >>> isinstance(JobInterruptedError("Nothing of the step was kept.", 503), BackendError)
    True
    """


class BackendUnreachableError(BackendError):
    """Nothing answers at the backend's address.

    >>> BackendUnreachableError("No backend answers at http://gpu-box:8000.", 503).status_code
    503
    """


class BackendDiedError(BackendError):
    """The local backend's process ended; the message shows the tail of its log.

    >>> isinstance(BackendDiedError("The service was ended by SIGKILL."), BackendError)
    True
    """


class NoTrainingDataError(ARTError, ValueError):
    """What was given cannot be trained; the message names the group, the trajectory and the reason.

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
    """An optional part is not installed.

    Args:
        what: What was wanted.
        extra: The extra that brings it.

    >>> print(MissingExtraError("TRL", "trl"))
    TRL is not installed. Install it: pip install 'art-trainer[trl]'
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed. Install it: pip install 'art-trainer[{extra}]'", 501)


_BY_CODE: dict[ErrorCode, type[BackendError]] = {
    ErrorCode.BAD_REQUEST: BadRequestError,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: BadRequestError,
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
    """Turn an error answer of the control API into the exception that carries it.

    >>> from_api_error(ApiErrorBody(code=ErrorCode.NOT_FOUND, message="No such job."), 404)
    NotFoundError('No such job.')
    """
    kind = _BY_CODE.get(body.code, BackendError)
    return kind(body.message, status_code, code=body.code, param=body.param)
