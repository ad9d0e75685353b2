from pathlib import Path

import pytest

from art_backend import command
from art_backend.devices import Placement
from art_backend.errors import BadRequestError
from art_backend.settings import Settings, is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org"])
def test_a_service_that_others_can_reach_needs_a_key(host, tmp_path):
    with pytest.raises(BadRequestError, match="ART_API_KEY"):
        Settings(path=tmp_path, host=host)
    assert Settings(path=tmp_path, host=host, api_key="k").api_key == "k"


def test_a_loopback_service_without_a_key_gets_a_random_one(tmp_path):
    one, two = Settings(path=tmp_path), Settings(path=tmp_path)
    assert one.generated_key and one.api_key != two.api_key
    assert not Settings(path=tmp_path, api_key="k").generated_key


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("my-box", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected


def test_the_command_line_becomes_settings(tmp_path, monkeypatch):
    given = []

    async def serve(settings, *, watch_stdin):
        given.append((settings, watch_stdin))

    monkeypatch.setattr(command, "serve_until_stopped", serve)
    (tmp_path / "code").mkdir()
    arguments = ["--path", str(tmp_path / "x" / ".." / "art"), "--api-key", "k", "--user-code", str(tmp_path / "code")]
    arguments += [
        "--engine-argument=--max-loras=4",
        "--engine-argument=--x",
        "--engine-devices",
        "0,1",
        "--trainer-devices",
        "2",
    ]
    arguments += ["--capture-retention-days", "1.5", "--watch-stdin"]
    command.cli(["serve", *arguments], standalone_mode=False)
    command.cli(["serve", "--api-key", "k"], standalone_mode=False)
    (settings, watched), (plain, _) = given
    assert watched
    assert (settings.path, settings.user_code) == (tmp_path / "art", tmp_path / "code")
    assert settings.engine_arguments == ["--max-loras=4", "--x"]
    assert settings.placement == Placement("auto", (0, 1), (2,))
    assert settings.capture_retention_days == 1.5
    assert plain == Settings(path=Path(".art").resolve(), api_key="k")
