"""How vLLM is found, and with which arguments it is started."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from art_backend.engines.process import EngineSettings, torch_engine
from art_backend.engines.vllm import (
    BARE_NAME,
    VllmInstallation,
    choose_launcher,
    find_vllm,
    vllm_engine,
    write_zero_adapter,
)
from art_backend.errors import BadRequestError

CPU = VllmInstallation("/envs/vllm/bin/python", "0.32.0", "cpu")
SOCKET = Path("/run/private/socket")
CUDA = VllmInstallation("/envs/vllm/bin/python", "0.32.0", "cuda")


@pytest.fixture
def settings(tiny_model, tmp_path):
    return EngineSettings(
        model_path=tiny_model("llama"),
        served_name="org/base",
        log_path=tmp_path / "engine.log",
        max_model_len=1000,
        max_num_seqs=7,
        max_loras=5,
        max_lora_rank=20,
        threads=2,
        kv_cache_mib=64,
    )


def options(launch):
    """Options of a command line, by name; the last of a kind counts, as it does for vLLM."""
    found = {}
    for i, word in enumerate(launch.argv):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            after = launch.argv[i + 1 : i + 2]
            found[name] = value or (after[0] if after and not after[0].startswith("--") else True)
    return found


def test_arguments_follow_the_model(settings):
    launch = vllm_engine(CPU)(settings, SOCKET, "secret")
    given = options(launch)
    assert launch.argv[0] == "/envs/vllm/bin/python"
    assert given["--uds"] == "/run/private/socket"
    assert not {"--host", "--port"} & given.keys()
    assert given["--model"] == str(settings.model_path)
    assert given["--max-model-len"] == "1000"
    assert given["--max-num-seqs"] == "7"
    assert given["--max-lora-rank"] == "32"  # the next that vLLM takes
    assert given["--kv-cache-memory-bytes"] == str(64 * 2**20)
    assert given["--block-size"] == "32"
    assert given["--logprobs-mode"] == "processed_logprobs"
    assert "--skip-tokenizer-init" not in given
    assert launch.defaults["OMP_NUM_THREADS"] == "2"


def test_a_cpu_computes_in_the_trainer_s_type(settings, monkeypatch):
    """vLLM's own ``auto`` is the checkpoint's type, which many CPUs only emulate; a GPU's is right."""
    monkeypatch.setenv("ART_COMPUTE_DTYPE", "float32")
    assert options(vllm_engine(CPU)(settings, 8123, "secret"))["--dtype"] == "float32"
    assert options(vllm_engine(CPU)(replace(settings, dtype="bfloat16"), 8123, "secret"))["--dtype"] == "bfloat16"
    assert options(vllm_engine(CUDA)(settings, 8123, "secret"))["--dtype"] == "auto"


def test_the_key_is_in_the_environment_alone(settings):
    launch = vllm_engine(CPU)(settings, SOCKET, "secret")
    assert not any("secret" in word for word in launch.argv)
    assert launch.env["ART_ENGINE_KEY"] == launch.env["VLLM_API_KEY"] == "secret"
    directory = Path(launch.env["PYTHONPATH"].split(":")[0])
    assert sorted(p.name for p in directory.glob("*.py")) == ["__init__.py", "art_key_check.py"]


def test_on_a_device_it_can_sleep_and_serves_the_base_model_itself(settings):
    given = options(vllm_engine(CUDA)(settings, SOCKET, "secret"))
    assert given["--enable-sleep-mode"] is True
    assert given["--served-model-name"] == "org/base"
    assert (given["--max-loras"], given["--max-cpu-loras"]) == ("2", "5")
    assert not {"--kv-cache-memory-bytes", "--block-size"} & given.keys()


def test_on_a_cpu_the_base_model_is_an_adapter_that_changes_nothing(settings):
    given = options(vllm_engine(CPU)(settings, SOCKET, "secret"))
    assert given["--served-model-name"] == BARE_NAME
    name, _, directory = given["--lora-modules"].partition("=")
    assert name == "org/base"
    assert (given["--max-loras"], given["--max-cpu-loras"]) == ("3", "6")
    base = AutoModelForCausalLM.from_pretrained(settings.model_path)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        expected = base(ids).logits
        assert torch.equal(PeftModel.from_pretrained(base, directory)(ids).logits, expected)


def test_whole_weights_need_no_adapters(settings, tiny_model):
    whole = replace(settings, max_loras=0)
    given = options(vllm_engine(CUDA)(whole, SOCKET, "secret"))
    assert given["--served-model-name"] == "org/base"
    assert not {"--enable-lora", "--max-loras", "--lora-modules"} & given.keys()
    with pytest.raises(BadRequestError, match="shares its embeddings"):
        vllm_engine(CPU)(whole, SOCKET, "secret")
    given = options(vllm_engine(CPU)(replace(whole, model_path=tiny_model("untied")), SOCKET, "secret"))
    assert given["--served-model-name"] == "org/base"


def test_a_model_without_projections_is_refused(tmp_path):
    with pytest.raises(BadRequestError, match="--engine torch"):
        write_zero_adapter(tmp_path, tmp_path / "adapter")


def test_what_the_user_gives_goes_before_what_is_derived(settings):
    given = options(vllm_engine(CPU, ("--max-loras=4", "--enforce-eager"))(settings, SOCKET, "secret"))
    assert given["--max-loras"] == "4"
    assert given["--enforce-eager"] is True


@pytest.mark.parametrize("argument", ["--host=0.0.0.0", "--api_key", "--no-enable-lora", "--logprobs-mode=raw_logits"])
def test_what_the_service_depends_on_is_not_the_users_to_set(argument):
    with pytest.raises(BadRequestError, match="engine_arguments"):
        vllm_engine(CPU, (argument,))


def test_a_python_without_vllm():
    assert find_vllm(sys.executable) is None
    with pytest.raises(BadRequestError, match="nowhere"):
        find_vllm("/nowhere/python")


def test_the_embedded_engine_where_there_is_no_vllm():
    assert choose_launcher("auto", vllm_python=None, arguments=()) is torch_engine
    assert choose_launcher("torch", vllm_python="/nowhere/python", arguments=()) is torch_engine
    with pytest.raises(BadRequestError, match=r"art-trainer\[vllm\]"):
        choose_launcher("vllm", vllm_python=None, arguments=())
    with pytest.raises(BadRequestError, match="are for vLLM"):
        choose_launcher("torch", vllm_python=None, arguments=("--max-loras=4",))
