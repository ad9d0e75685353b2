"""The command line, as real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from art.backend import machine
from art.cli import app


def art(*arguments: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", "from art.cli import main; main()", *arguments],
        text=True,
        capture_output=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **environment},
        timeout=120,
    )


def test_help_names_every_command_and_fits_80_columns() -> None:
    finished = art("--help")
    assert finished.returncode == 0
    commands = ("demo", "preflight", "train", "eval", "runs", "show", "delete", "serve", "doctor")
    for part in (*commands, "--version", "--install-completion", "Start here"):
        assert part in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 80


def test_the_help_of_every_command_fits_80_columns_and_says_what_each_option_is() -> None:
    group = typer.main.get_command(app)
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
    for name, command in group.commands.items():
        if name in ("serve", "export"):  # their options are the backend's
            assert command.help
            continue
        shown = runner.invoke(app, [name, "--help"])
        assert shown.exit_code == 0, name
        assert max(map(len, shown.stdout.splitlines())) <= 80, name
        assert "…" not in shown.stdout, name
        assert command.help, name
        assert "\n" not in command.help.replace("\n\n", ""), "broken where the terminal ends, not where the source does"
        for option in command.params:
            assert option.help, (name, option.name)
            assert any(text in shown.stdout for text in (*option.opts, option.metavar or option.name)), (
                name,
                option.name,
            )


@pytest.mark.parametrize("command", ["serve", "export"])
def test_the_backend_explains_its_own_commands(command: str) -> None:
    shown = art(command, "--help")
    assert shown.returncode == 0, shown.stderr
    assert f"Usage: art {command} [OPTIONS]" in shown.stdout
    assert "--ready-file" not in shown.stdout, "an option for programs"
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["serve"], ["export", "p/m"], ["doctor", "--model", "m"]])
def test_a_command_of_the_backend_says_what_is_missing(arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in ("torch", "peft") else object())
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: The backend is not installed: torch, peft. Install it: pip install 'art-trainer[backend]'\n"
    )


def test_completion_of_the_shell() -> None:
    finished = art("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert finished.returncode == 0, finished.stderr
    assert "_ART_COMPLETE=complete_bash" in finished.stdout
    completed = art(_ART_COMPLETE="complete_bash", COMP_WORDS="art do", COMP_CWORD="1")
    assert completed.stdout.split() == ["doctor"]


def test_no_argument_shows_the_help() -> None:
    assert "Usage: art [OPTIONS] COMMAND" in art().stdout + art().stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom art.cli import app\n"
        "heavy = {'torch', 'openai', 'httpx', 'art_backend', 'transformers', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert art("--version").stdout == f"art {version('art-trainer')}\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--steps", "0"], "--steps"),
        (["demo", "--group-size", "1"], "--group-size"),
        (["demo", "--learning-rate", "0"], "--learning-rate"),
        (["demo", "--backend", "localhost:8000"], "--backend"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--engine", "foo"], "'foo' is not one of"),
        (["serve", "--user-code", "/no/such/directory"], "--user-code"),
        (["demo", "--engine", "foo"], "'foo' is not one of"),
        (["preflight", "agent", "--scenarios", "agent:s"], "write MODULE:NAME"),
        (["preflight", "no_such_agent:run", "--scenarios", "agent:s"], "no_such_agent"),
        (["demo", "--no-such-option"], "--no-such-option"),
    ],
)
def test_a_bad_option_is_named(arguments: list[str], named: str) -> None:
    finished = art(*arguments)
    assert finished.returncode == 2
    assert named in finished.stderr
    assert f"Usage: art {arguments[0]}" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_key_that_was_forgotten_is_not_made_up(tmp_path: Path) -> None:
    finished = art("serve", "--port", "0", "--path", str(tmp_path), "--api-key")
    assert finished.returncode == 2
    assert "'--api-key' requires an argument" in finished.stderr


def test_a_model_that_does_not_exist_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    finished = art("demo", "--base-model", "/no/such/model", "--output", str(tmp_path / "run"))
    assert finished.returncode == 1
    assert "/no/such/model does not exist" in finished.stderr
    assert "art demo --base-model" not in finished.stdout, "the same command would fail in the same way"
    assert "Traceback" not in finished.stderr + finished.stdout


def test_a_backend_that_is_not_there_ends_the_demo_without_repeating_its_key(tmp_path: Path) -> None:
    finished = art(
        "demo",
        "--backend",
        "http://127.0.0.1:9",
        "--api-key",
        "secret-key",
        "--output",
        str(tmp_path / "run"),
        "--fresh",
    )
    assert finished.returncode == 1
    assert "Error:" in finished.stderr
    assert "secret-key" not in finished.stderr + finished.stdout
    assert "--api-key …" in finished.stdout
    assert "--fresh" not in finished.stdout


def test_serving_other_machines_needs_a_key(tmp_path: Path) -> None:
    finished = art("serve", "--host", "0.0.0.0", "--port", "0", "--path", str(tmp_path), ART_API_KEY="")
    assert finished.returncode == 1
    assert "without a key" in finished.stderr
    assert "Traceback" not in finished.stderr
