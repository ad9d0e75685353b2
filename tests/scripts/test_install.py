"""The installer of ``make setup``: what pip is configured to do, uv does too."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import install


@pytest.fixture
def configure(monkeypatch, tmp_path):
    """Give pip this configuration file and no other, and no settings from the environment."""
    for name in [name for name in install.os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)

    def write(text: str) -> None:
        (tmp_path / "pip.conf").write_text(text)
        # Read last, whatever else this machine configures.
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))

    return write


def test_settings_reach_uv(configure, monkeypatch):
    configure(
        "[global]\nindex-url = https://one.test/simple\ntimeout = 7\n[install]\nfind-links =\n    /first\n    /second\n"
        "[freeze]\nlocal = true\n"
    )
    monkeypatch.setenv("PIP_CONSTRAINT", "/limits.txt")
    monkeypatch.setenv("PIP_CERT", "/ca.pem")
    options, variables = install.uv_options()
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert [pair for pair in pairs if pair[0] == "--default-index"] == [("--default-index", "https://one.test/simple")]
    assert [value for option, value in pairs if option == "--find-links"][-2:] == ["/first", "/second"]
    assert ("--constraint", "/limits.txt") in pairs
    assert variables["UV_HTTP_TIMEOUT"] == "7"
    assert variables["SSL_CERT_FILE"] == "/ca.pem"


def test_a_setting_without_an_equivalent_is_named_and_pip_installs(configure, capsys):
    configure("[install]\nrequire-hashes = true\n")
    assert install.uv_options() is None
    assert "pip's setting 'require-hashes' has no equivalent in uv: installing with pip." in capsys.readouterr().err


def test_a_local_package_is_installed_and_a_failure_is_pips_to_report(configure, tmp_path):
    configure("[global]\nno-color = true\n")
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        '[project]\nname = "one-line"\nversion = "1"\n[build-system]\nrequires = []\nbuild-backend = "made"\nbackend-path = ["."]\n'
    )
    (package / "made.py").write_text(BUILD_BACKEND)
    target = tmp_path / "target"
    script = [sys.executable, install.__file__]
    subprocess.run([*script, "--no-deps", "--target", target, package], check=True)
    assert (target / "one_line.py").read_text() == "x = 1\n"
    missing = subprocess.run([*script, "--no-deps", tmp_path / "absent"], check=False, capture_output=True, text=True)
    assert missing.returncode != 0
    assert "uv failed: installing with pip." in missing.stderr


def test_the_build_of_torch_is_read(tmp_path):
    assert install.torch_build(sys.executable).startswith("2.")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    assert install.torch_build(str(Path(tmp_path) / "empty" / "bin" / "python")) == ""


BUILD_BACKEND = """
import zipfile
from pathlib import Path


def build_wheel(directory, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(Path(directory) / "one_line-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one_line.py", "x = 1\\n")
        wheel.writestr("one_line-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: one-line\\nVersion: 1\\n")
        wheel.writestr("one_line-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: made\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("one_line-1.dist-info/RECORD", "")
    return "one_line-1-py3-none-any.whl"
"""
