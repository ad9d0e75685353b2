"""A small real reverse proxy: ends TLS, takes a prefix off the path, passes bytes on as they come.

``python -m tests.support.tls_proxy LISTEN_HOST PORT UPSTREAM_HOST PORT CERTIFICATE PREFIX``. SIGUSR1 cuts every open
connection, as a proxy that is reloaded does. Where nothing listens behind it, it answers 502 with a page of its own.
"""

import asyncio
import signal
import ssl
import sys

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 20\r\nConnection: close\r\n\r\n<h1>Bad Gateway</h1>"


class Proxy:
    def __init__(self, upstream: tuple[str, int], prefix: str) -> None:
        self.upstream, self.prefix = upstream, prefix
        self.open: set[asyncio.StreamWriter] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, rest = head.split(" ", 2)
            if not path.startswith(self.prefix + "/"):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            request, _, headers = rest.partition("\r\n")
            kept = [line for line in headers.split("\r\n") if line and not line.lower().startswith("connection:")]
            lines = [f"{method} {path.removeprefix(self.prefix)} {request}", *kept, "Connection: close", "", ""]
            try:
                from_service, other = await asyncio.open_connection(*self.upstream)
            except OSError:
                writer.write(BAD_GATEWAY)
                return
            other.write("\r\n".join(lines).encode("latin-1"))
            sending = asyncio.create_task(pass_on(reader, other))
            await pass_on(from_service, writer)
            sending.cancel()
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # one side left
        finally:
            self.open.discard(writer)
            for one in (writer, other):
                if one is not None:
                    one.close()

    def cut(self) -> None:
        for writer in list(self.open):
            writer.transport.abort()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def main(host: str, port: str, upstream_host: str, upstream_port: str, certificate: str, prefix: str) -> None:
    proxy = Proxy((upstream_host, int(upstream_port)), prefix)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, proxy.cut)
    server = await asyncio.start_server(proxy.handle, host, int(port), ssl=context, limit=2**20)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
