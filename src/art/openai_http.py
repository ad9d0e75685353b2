"""The ``AsyncOpenAI`` clients that models hand out."""

import functools
import ssl
from typing import Any

from openai import AsyncOpenAI, Timeout

from art.capture import async_http_client, http_package
from art.control import is_loopback

TIMEOUT_S = 1200.0
CONNECT_S = 5.0
CONNECTIONS = 100_000


def make_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """A client that waits long for answers and bears very many calls at once."""
    timeout = Timeout(TIMEOUT_S, connect=CONNECT_S)
    if is_loopback(base_url):  # a proxy setting is not meant for this machine, which needs no certificates either
        http = async_http_client(timeout=timeout, limits=_limits(), trust_env=False, verify=_no_tls())
    else:
        http = async_http_client(timeout=timeout, limits=_limits())
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, http_client=http)


def _limits() -> Any:
    return http_package().Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """A context without certificates: reading them takes longer than everything else in making a client."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
