"""The name that scripts for a hosted service import. ART has no hosted service: it runs on machines of your own."""

from art.errors import ARTError


class ServerlessBackend:
    """Says what to write instead.

    >>> art.ServerlessBackend()
    Traceback (most recent call last):
    art.errors.ARTError: There is no hosted service to connect to. ...
    """

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None) -> None:
        raise ARTError(
            "There is no hosted service to connect to. Run `art serve` on a machine of your own and write "
            "art.RemoteBackend(url, api_key), or art.LocalBackend() to use this machine.",
            501,
        )
