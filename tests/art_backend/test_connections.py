"""Connections that say nothing, or half of something, lock nobody out."""

import asyncio
import contextlib

import httpx
import pytest
import uvicorn
from tests.support.waiting import PATIENCE_S, until

from art_backend.web.connections import Connections, guarded, watch

HALF = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"


@contextlib.asynccontextmanager
async def serving(go_on=None, **limits):
    """Answers ``/slow`` once ``go_on`` is set."""

    async def application(scope, receive, send):
        assert scope["type"] == "http"
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if scope["path"] == "/slow":
            await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    connections = Connections(**limits)
    config = uvicorn.Config(application, port=0, http=guarded(connections), lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(watch(connections))]
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield port, connections
    server.should_exit = True
    await tasks[0]
    tasks[1].cancel()


async def connect(port, data=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def get(port, path="/"):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
        return (await http.get(path)).status_code


def count_closed(opened):
    return sum(reader._eof or reader.exception() is not None for reader, _ in opened)


@pytest.mark.parametrize("said", [b"", b"POST", HALF, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_quiet_connections_make_room(said):
    async with serving(limit=12) as (port, connections):
        others = [await connect(port, said) for _ in range(40)]
        await until(lambda: count_closed(others) >= 31)
        assert connections.of_peers.total() <= 9, "one peer has three quarters"
        assert await get(port) == 200
        for _, writer in others:
            writer.close()
    assert connections.of_peers.total() == 0
    assert not connections.quiet


async def test_a_connection_that_is_answered_is_not_dropped():
    go_on = asyncio.Event()
    async with serving(go_on, limit=12) as (port, connections):
        answers = [asyncio.create_task(get(port, "/slow")) for _ in range(8)]
        await until(lambda: connections.of_peers.total() - len(connections.quiet) == 8)
        others = [await connect(port) for _ in range(30)]
        await until(lambda: count_closed(others) >= 29)
        go_on.set()
        assert await asyncio.gather(*answers) == [200] * 8
        for _, writer in others:
            writer.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: ", HALF])
async def test_an_unfinished_request_is_closed_in_time(said):
    async with serving(limit=100, patience_s=1.0) as (port, connections):
        halves = [await connect(port, said) for _ in range(30)]
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in halves:
                await reader.read()
        assert await get(port) == 200
        await until(lambda: not connections.of_peers.total())


async def test_a_slow_header_is_closed_and_a_slow_body_is_read():
    async with serving(limit=100, patience_s=1.0) as (port, _):
        reader, writer = await connect(port, b"GET / HTTP/1.1\r\n")
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"X: y\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)
                    if reader._buffer:
                        break
        assert b"not finished in time" in await reader.read()
        reader, writer = await connect(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):  # more than the patience in all, a little at a time
            await asyncio.sleep(0.15)
            writer.write(b"x")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(1.5)  # idle between two requests is no unfinished request
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        writer.close()


@pytest.mark.parametrize("header", [b"X: " + b"y" * 5_000_000, b"\r\n".join(b"X%d: y" % i for i in range(100_000))])
async def test_large_headers_are_refused(header):
    async with serving(limit=100) as (port, _):
        reader, writer = await connect(port)
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + header)
            await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert b"400" in await reader.readline()
        assert await get(port) == 200
