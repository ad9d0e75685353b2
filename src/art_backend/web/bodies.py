"""Request bodies: read up to a limit, parsed as strictly as they will be stored."""

from collections import Counter
from typing import Any

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect

from art_backend.errors import BadRequestError, BusyError

MAX_CALL_BYTES = 16 * 2**20
"""A model call: several million tokens of text."""

MAX_CONTROL_BYTES = 256 * 2**20
"""A control request: a training step with about five million tokens in its body."""

MAX_READING_BYTES = 512 * 2**20
"""Bodies of one rollout, model or service key that are being read."""


class BodyReader:
    """Reads bodies of at most ``limit`` bytes; of one sender, at most ``MAX_READING_BYTES`` at the same time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reading: Counter[str] = Counter()

    async def read(self, request: Request, sender: str = "") -> bytes:
        """Read a request's body.

        Raises:
            BadRequestError: It is compressed, or too large; no more than the limit is read.
            BusyError: Too much of the same sender is being read.
        """
        encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
        if encoding.lower() not in ("", "identity"):
            raise BadRequestError(
                f"Content-Encoding: {encoding[:100]!r} is not supported. Send the body uncompressed, without this header."
            )
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and (len(announced) > 18 or int(announced) > self._limit):
            raise _too_large(self._limit)
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self._reading[sender] += len(chunk)
                if len(body) > self._limit:
                    raise _too_large(self._limit)
                if self._reading[sender] > MAX_READING_BYTES:
                    raise BusyError(
                        f"More than {MAX_READING_BYTES} bytes of this sender's requests are being read. Send fewer at once.",
                        retry_after_s=5,
                    )
        except ClientDisconnect as error:
            raise BadRequestError("The connection closed before the whole body arrived.") from error
        finally:
            self._reading[sender] -= len(body)
            if not self._reading[sender]:
                del self._reading[sender]
        return bytes(body)


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a request's JSON. Whole numbers that 64 bits cannot hold become floats (RFC 8259 §6).

    Raises:
        BadRequestError: It is not an object in valid JSON and Unicode.
    """
    try:
        body = orjson.loads(raw)
        orjson.dumps([[[[body]]]])  # deeper than it is wrapped where it is stored or repeated
    except TypeError as error:
        raise BadRequestError("The body is nested too deeply.") from error
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"The body is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.")
    return body


def _too_large(limit: int) -> BadRequestError:
    return BadRequestError(f"The body is larger than {limit} bytes, which is the limit. Send less at once.")
