"""Messages as a real terminal shows them, by a pseudo-terminal of a given width."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from art.terminal import art_command

SENTENCE = "warning: Take larger groups, scenarios of middling difficulty, or a reward with more shades of a kind."
PATH = "/a/long/path/that/is/longer/than/the/terminal/is/wide/so/that/it/would/be/broken/were/it/a/sentence"


def on_a_terminal(code: str, width: int) -> list[str]:
    """The lines that a program writes to a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    while chunk := _read(master):
        shown += chunk
    assert process.wait(timeout=150) == 0, shown
    os.close(master)
    return shown.decode().split("\r\n")[:-1]


def _read(master: int) -> bytes:
    try:
        return os.read(master, 4096)
    except OSError:  # the program has ended
        return b""


@pytest.mark.parametrize("width", [67, 80])
def test_messages_break_between_words_and_paths_stay_whole(width: int) -> None:
    lines = on_a_terminal(f"from art.terminal import say; say({SENTENCE!r}); say({PATH!r})", width)
    assert " ".join(lines[:2]) == SENTENCE
    assert max(map(len, lines[:2])) <= width
    assert lines[2:] == [PATH]


def test_a_message_stands_above_a_progress_bar() -> None:
    code = "from art.gather import progress_bar; from art.terminal import say\n"
    code += f"with progress_bar('gather', 3): say({PATH!r})"
    shown = [line.rpartition("\r")[2] for line in on_a_terminal(code, 80)]
    assert shown[0] == PATH
    assert shown[1].startswith("gather:   0%")


def test_a_hint_names_the_command_that_the_shell_finds(tmp_path: Path, monkeypatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "art").touch(0o755)
    running = str(tmp_path / "here/art")
    monkeypatch.setattr(sys, "argv", [running, "demo"])
    for first, typed in (("here", "art"), ("there", running), ("nowhere", running)):
        monkeypatch.setenv("PATH", str(tmp_path / first))
        assert art_command() == typed
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert art_command() == "art"


def test_a_file_gets_a_message_as_it_is(capsys) -> None:
    from art.terminal import say

    say(SENTENCE)
    assert capsys.readouterr().err == SENTENCE + "\n"


@pytest.mark.parametrize("width", [67, 80])
def test_the_table_of_steps_has_the_columns_that_fit(width: int) -> None:
    code = """
import asyncio, tempfile, art
from tests.support.recording_backend import Recorder

async def rollout(model, scenario):
    return art.Trajectory(reward=1.0)

async def main():
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=tempfile.mkdtemp(), report_metrics=[])
    await model.register(Recorder())
    await art.train(model, rollout, range(3), groups_per_step=1, group_size=2)

asyncio.run(main())
"""
    lines = on_a_terminal(code, width)
    shown = [line.rpartition("\x1b[2K")[2].rpartition("m")[2] if "\x1b" in line else line for line in lines]
    assert any("used distinct entropy" in line for line in lines)
    assert all(len(line) <= width for line in shown), shown
    assert ("tokens/s" in "".join(lines)) == (width == 80)
    assert "No held-out evaluation was made" in "".join(lines)
