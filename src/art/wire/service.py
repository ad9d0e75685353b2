"""Liveness and version of the service."""

from typing import Literal

from art.wire.base import Wire

PROTOCOL_VERSION = 1
"""Raised whenever a frontend and a backend of different numbers could misunderstand each other."""

API_PREFIX = "/api/v1"


class Version(Wire):
    """The service's version and its protocol version."""

    version: str
    """The version of the backend package."""
    protocol: int
    """Must equal the client's ``PROTOCOL_VERSION``."""


class ProcessHealth(Wire):
    """One child process of the service."""

    name: str
    """``engine`` or ``trainer``, followed by the base model that it holds."""
    pid: int | None
    state: Literal["starting", "ready", "paused", "failed", "stopped"]
    detail: str | None = None
    """For a failed process: the tail of its log. For one that starts: the log's last line."""


class Health(Wire):
    """Passive health: answering costs the engine nothing."""

    status: Literal["ok", "degraded"]
    uptime_s: float
    processes: list[ProcessHealth]
    preparing: dict[str, str] = {}
    """The work going on to get base models, such as a download, by their names."""
