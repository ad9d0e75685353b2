"""Where clients put their key."""

from collections.abc import Mapping


def read_key(headers: Mapping[str, str]) -> str | None:
    """The key in ``Authorization: Bearer`` or ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None
