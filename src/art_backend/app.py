"""The HTTP application: the control API and the gateway on one port, with one error shape for the control API."""

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from art.wire import ApiError, ApiErrorBody, ErrorCode
from art_backend.api import build_api, build_rollouts, service_only
from art_backend.errors import ServiceError
from art_backend.gateway.app import build_gateway
from art_backend.service import Service
from art_backend.serving.exposition import build_exposition
from art_backend.store.database import explain_damage

_log = logging.getLogger(__name__)

_CODES = {401: ErrorCode.UNAUTHORIZED, 403: ErrorCode.FORBIDDEN, 404: ErrorCode.NOT_FOUND, 409: ErrorCode.CONFLICT}


def build_app(service: Service, on_start: Callable[[], None] = lambda: None) -> FastAPI:
    """Return the application of ``service``; its lifespan ends the service's children.

    Args:
        on_start: Called when the application is ready to answer.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        on_start()
        yield
        await service.close()

    app = FastAPI(
        title="ART",
        summary="Trains the agent you already have.",
        version=version("art-trainer"),
        lifespan=lifespan,
        openapi_url=None,  # see _build_description
        responses={"4XX": {"model": ApiError}, "5XX": {"model": ApiError}},
    )
    # first: most calls are its
    app.include_router(
        build_gateway(service.directory, service.captures, service.keyring.identify, limits=service.limits)
    )
    service_route = service_only(service.keyring)
    app.include_router(build_rollouts(service.captures, service.policy, service_route))
    app.include_router(build_exposition(service, service_route))
    app.include_router(build_api(service, service_route))
    app.include_router(_build_description(app, service_route))
    add_error_handlers(app)
    return app


def _build_description(app: FastAPI, route_class: type[APIRoute]) -> APIRouter:
    router = APIRouter(route_class=route_class)

    @router.get("/openapi.json", include_in_schema=False)
    async def describe() -> JSONResponse:
        return JSONResponse(app.openapi())

    return router


def add_error_handlers(app: FastAPI) -> None:
    """Give every error the control API's shape; the data plane formats its own errors."""

    @app.exception_handler(ServiceError)
    async def answer_service_error(_: Request, error: ServiceError) -> JSONResponse:
        headers = {"Retry-After": f"{error.retry_after_s:.0f}"} if error.retry_after_s is not None else None
        return _answer(error.status, error.code, error.message, error.param, headers)

    @app.exception_handler(sqlite3.DatabaseError)
    async def answer_damage(_: Request, error: sqlite3.DatabaseError) -> JSONResponse:
        _log.error("The database failed", exc_info=error)
        damage = explain_damage(error)
        return _answer(damage.status, damage.code, damage.message)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body")
        return _answer(400, ErrorCode.BAD_REQUEST, f"{param or 'body'}: {first['msg']}.", param or None)

    @app.exception_handler(HTTPException)
    async def answer_http(_: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, ErrorCode.BAD_REQUEST)
        return _answer(error.status_code, code, str(error.detail), headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def answer_bug(_: Request, error: Exception) -> JSONResponse:
        _log.error("Unexpected error", exc_info=error)
        return _answer(
            500, ErrorCode.INTERNAL, f"{type(error).__name__}: {error}. The service's log has the traceback."
        )


def _answer(
    status: int, code: ErrorCode, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    body = ApiError(error=ApiErrorBody(code=code, message=message, param=param))
    return JSONResponse(body.model_dump(mode="json"), status, headers=headers)
