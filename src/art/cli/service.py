"""``art serve`` and ``art export``: the backend's own commands, with its options."""

import os
import subprocess
import sys
from typing import Any, NoReturn

import typer

from art.cli.targets import check_backend

FORWARDED: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command whose arguments, ``--help`` included, are the backend's."""


def serve(context: typer.Context) -> None:
    """Serve and train models, for programs on this machine or others.

    Point art.RemoteBackend(url, api_key) or any OpenAI client at it. Stop it with Ctrl-C.
    """
    _forward("serve", context.args)


def export(context: typer.Context) -> None:
    """Export a trained model as a Hugging Face folder, including the tokenizer."""
    _forward("export", context.args)


def _forward(command: str, arguments: list[str]) -> NoReturn:
    check_backend()
    environment, rest = dict(os.environ), iter(arguments)
    kept: list[str] = []
    for word in rest:
        # The key travels in the environment: everyone on the machine can read arguments.
        if word == "--api-key" and (key := next(rest, None)) is not None:
            environment["ART_API_KEY"] = key
        elif word.startswith("--api-key="):
            environment["ART_API_KEY"] = word.partition("=")[2]
        else:
            kept.append(word)
    start = [sys.executable, "-c", "from art_backend.__main__ import main; main('art')", command, *kept]
    if {"--help", "-h"} & set(kept):
        raise typer.Exit(subprocess.run(start, env=environment, check=False).returncode)
    # The service takes this process's place, so that signals and exit codes are its own.
    os.execve(sys.executable, start, environment)
