"""The service as it is started everywhere, except that its engine is the scripted one, or that vLLM's address is known.

``engine.json`` in its directory tells where the engine listens, for those who call it directly.
"""

import argparse
import json
import socket as socketlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import uvloop

from art_backend.command import serve_until_stopped
from art_backend.engines.process import EngineSettings, Launch, Launcher
from art_backend.engines.vllm import choose_launcher
from art_backend.settings import Settings

ENGINE_FILE = "engine.json"
URL_VARIABLE = "ART_BENCH_ENGINE_URL"


def noted(directory: Path, launcher: Launcher, settings: EngineSettings, socket: Path, api_key: str) -> Launch:
    """Launch an engine, and write down where it is."""
    launch = launcher(settings, socket, api_key)
    url = launch.env.get(URL_VARIABLE, f"unix:{socket}")
    (directory / ENGINE_FILE).write_text(json.dumps({"url": url, "api_key": api_key}))
    return launch


def scripted_engine(_: EngineSettings, socket: Path, api_key: str) -> Launch:
    """Launch the scripted engine, which listens on a port too, for its peers."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.scripted_engine", "--uds", str(socket), "--port", str(port)]
    return Launch("scripted engine", argv, env={"ART_ENGINE_KEY": api_key, URL_VARIABLE: f"http://127.0.0.1:{port}"})


def free_port() -> int:
    with socketlib.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_service", description=__doc__)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--vllm-python", help="serve on vLLM, by this interpreter, instead of the scripted engine")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(argv)
    settings = Settings(
        path=options.path, port=0, ready_file=options.ready_file, max_sequence_length=8192, threads=options.threads
    )
    launcher: Launcher = scripted_engine
    if options.vllm_python is not None:
        launcher = choose_launcher("vllm", vllm_python=options.vllm_python, arguments=())
    uvloop.run(serve_until_stopped(settings, watch_stdin=True, launcher=partial(noted, options.path, launcher)))


if __name__ == "__main__":
    main()
