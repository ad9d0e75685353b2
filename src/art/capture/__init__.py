"""Record model calls into the trajectory that is open while they are made.

Clients that models hand out record by themselves, through their HTTP package's own hooks. For a client of your own:

    client = openai.AsyncOpenAI(http_client=art.capture.async_http_client())
    claude = anthropic.AsyncAnthropic(http_client=art.capture.async_http_client())

Any other client that was built by hand is not seen, since nothing of another package is patched. An agent that cannot be given
a client is captured where its calls arrive: ``async with model.rollout() as r``. docs/capture.md has the choices.
"""

from art.capture.clients import async_http_client, http_client
from art.capture.scopes import no_capture

__all__ = ["async_http_client", "http_client", "no_capture"]
