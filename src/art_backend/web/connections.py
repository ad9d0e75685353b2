"""Connections to the service: how many there may be, and how long an unfinished request may take.

A peer that opens connections and sends nothing, or half a request, must not lock others out. So connections that are not being
answered make room for new ones, the longest quiet first, and headers are bounded in size and time.
"""

import asyncio
import resource
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CONNECTIONS = 16_384
MAX_OPEN_FILES = 65_536

KEPT_FILES = 64
"""Open files that connections leave to the rest of the service."""

MAX_HEADER_BYTES = 64 * 2**10

PATIENCE_S = 30.0
"""Seconds that headers may take, and that the sender of an unfinished request may be silent."""


def count_allowed_connections() -> int:
    """Return how many connections the process can hold, each with one to an engine; raise the limit of open files as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    return max(8, min(MAX_CONNECTIONS, (files - KEPT_FILES) // 2))


@dataclass
class Connections:
    """The connections of one server.

    Args:
        limit: Most of them at the same time. One peer has at most three quarters.
    """

    limit: int
    patience_s: float = PATIENCE_S
    max_header_bytes: int = MAX_HEADER_BYTES
    of_peers: Counter[str] = field(default_factory=Counter[str])
    quiet: OrderedDict["GuardedProtocol", str] = field(default_factory=OrderedDict["GuardedProtocol", str])
    """Connections that are not being answered, the longest quiet first, each with its peer."""

    def admit(self, connection: "GuardedProtocol", peer: str) -> bool:
        """Count a new connection, in place of a quiet one if need be; return whether there was room."""
        if self.of_peers[peer] >= max(1, self.limit * 3 // 4) and not self._drop_quiet(peer):
            return False
        if self.of_peers.total() >= self.limit and not self._drop_quiet(None):
            return False
        self.of_peers[peer] += 1
        self.quiet[connection] = peer
        return True

    def forget(self, connection: "GuardedProtocol", peer: str) -> None:
        """Stop counting a connection."""
        self.quiet.pop(connection, None)
        self.of_peers[peer] -= 1
        if not self.of_peers[peer]:
            del self.of_peers[peer]

    def drop_unfinished(self, now: float) -> None:
        """Close connections whose unfinished request takes too long."""
        for connection in [one for one in self.quiet if one.is_late(now)]:
            connection.refuse("The request was not finished in time.")

    def _drop_quiet(self, peer: str | None) -> bool:
        victim = next((one for one, its_peer in self.quiet.items() if peer in (None, its_peer)), None)
        if victim is not None:
            victim.drop()
        return victim is not None


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, within the limits of ``guard``, which a subclass sets."""

    guard: Connections
    _peer: str | None = None
    _heard: float = 0.0
    _begun: float = 0.0
    """When the request, or else the connection, began."""
    _in_headers = True
    _in_request = True
    """Whether a request was begun and not finished; a new connection owes one."""
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        self._begun = self._heard = self.loop.time()
        if self.guard.admit(self, peer):
            self._peer = peer
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.guard.max_header_bytes and not self.transport.is_closing():
                self.refuse(f"The request's headers are larger than {self.guard.max_header_bytes} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = self._in_request = True
        self._header_bytes = 0
        self._begun = self.loop.time()
        if self in self.guard.quiet:
            self.guard.quiet.move_to_end(self)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_request = False
        if not self.cycle.response_complete:
            self.guard.quiet.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._peer is not None:
            self.guard.quiet[self] = self._peer
        super().on_response_complete()

    def is_late(self, now: float) -> bool:
        """Whether an unfinished request takes too long."""
        if not self._in_request or self.flow.read_paused:
            return False
        return now - (self._begun if self._in_headers else self._heard) > self.guard.patience_s

    def refuse(self, why: str) -> None:
        """Say why, and close."""
        if self.cycle is None or self.cycle.response_complete:
            self.send_400_response(why)
        self.drop()

    def drop(self) -> None:
        """Close at once, and count it no more."""
        self._forget()
        self.transport.close()

    def _forget(self) -> None:
        if (peer := self._peer) is not None:
            self._peer = None
            self.guard.forget(self, peer)


def guarded(connections: Connections) -> type[GuardedProtocol]:
    """Return the protocol class of a server with these connections."""
    return type("GuardedProtocol", (GuardedProtocol,), {"guard": connections})


async def watch(connections: Connections) -> None:
    """Close connections with late requests until cancelled."""
    while True:
        await asyncio.sleep(connections.patience_s / 6)
        connections.drop_unfinished(asyncio.get_running_loop().time())
