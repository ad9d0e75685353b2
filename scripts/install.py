"""Install packages as ``pip install`` would, several times faster: ``python scripts/install.py [--python PYTHON] ARGUMENTS``.

uv resolves, downloads and unpacks; it does not read pip's configuration, so indexes, links, constraints and certificates are
passed on. pip itself installs where uv cannot: a setting that uv lacks, no uv for this platform, or a failure. Which build of
torch fits the machine is pip's choice: install torch first, with pip. uv must leave it as it is.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
"""pip's settings that decide what is installed, and uv's options for them. Each value is a list."""

VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}

IRRELEVANT = {
    "cache-dir",
    "config-file",
    "disable-pip-version-check",
    "no-color",
    "no-input",
    "progress-bar",
    "quiet",
    "retries",
    "root-user-action",
}


def pip_settings() -> Iterator[tuple[str, str]]:
    """Yield the names and values of pip's configuration, files first, environment last."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True)
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        key, value = line.split("=", 1)
        section, name = key.rsplit(".", 1)
        if section in {"global", "install", ":env:"}:
            yield name, value.strip("'\"").replace("\\n", " ")


def uv_options() -> tuple[list[str], dict[str, str]] | None:
    """pip's configuration as options and environment of uv; ``None`` where a setting has no equivalent."""
    options, variables = ["--index-strategy", "unsafe-best-match"], dict[str, str]()
    for name, value in pip_settings():
        if name in OPTIONS:
            options += [word for item in value.split() for word in (OPTIONS[name], item)]
        elif name in VARIABLES:
            variables[VARIABLES[name]] = value
        elif name not in IRRELEVANT:
            print(f"pip's setting {name!r} has no equivalent in uv: installing with pip.", file=sys.stderr)
            return None
    return options, variables


def find_uv() -> Path | None:
    """uv beside this Python, installed first if need be; ``None`` where it cannot be."""
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"]
        if subprocess.run(pip, check=False).returncode:
            print("uv cannot be installed here: installing with pip.", file=sys.stderr)
            return None
    return uv


def torch_build(python: str) -> str:
    """The version of torch in an environment, its build included (``2.13.0+cpu``); empty where it is missing."""
    code = "import importlib.metadata as m; print(*(d.version for d in m.distributions(name='torch')))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: list[str]) -> int:
    python = sys.executable
    if arguments[:1] == ["--python"]:
        python, arguments = arguments[1], arguments[2:]
    if (found := uv_options()) and (uv := find_uv()):
        options, variables = found
        meant = torch_build(python)
        command = [uv, "pip", "install", "--quiet", *options, "--python", python, *arguments]
        done = subprocess.run(command, env={**os.environ, **variables}, check=False)
        if meant and torch_build(python) != meant:
            print(
                f"uv replaced torch {meant} by {torch_build(python)}. Remove the environment and try again.",
                file=sys.stderr,
            )
            return 1
        if not done.returncode:
            return 0
        print("uv failed: installing with pip.", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*pip, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
