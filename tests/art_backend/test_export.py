"""What is exported loads in plain transformers, and is what was trained."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from tests.support.tiny import build_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from art.wire import Conversation, LoraSpec, RegisterModel, SftOptions
from art_backend.errors import BadRequestError, ConflictError, NotFoundError, StorageFailedError
from art_backend.examples import render_conversation
from art_backend.models.base import SMALL_MODEL
from art_backend.models.export import export_model
from art_backend.settings import Settings
from art_backend.store.database import open_database
from art_backend.store.runs import RunStore
from art_backend.tokens.render import ChatRenderer
from art_backend.training.trainer import Trainer
from art_backend.training.types import ModelSetup, SftInput

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A service's directory with a model of two versions, and its base model."""
    base = build_tiny_model(tmp_path_factory.mktemp("base") / "tiny-base")
    settings = Settings(path=tmp_path_factory.mktemp("art"))
    db = open_database(settings.database_path)
    RunStore(db).register_model(RegisterModel(project="p", name="m", base_model=str(base)))
    db.close()
    setup = ModelSetup(base, LoraSpec(), 256, settings.checkpoints_dir("p", "m"), precision="float32")
    rows = render_conversation(ChatRenderer.load(base), Conversation(messages=CHAT))
    trainer = Trainer(setup)
    for step in (1, 2):
        trainer.train(SftInput([rows], SftOptions(learning_rates=[1e-2]), step))
    return settings, base


def logprobs(model):
    ids = torch.tensor([[1, 5, 9, 200, 17, 3, 44]])
    with torch.no_grad():
        return torch.log_softmax(model.eval()(ids).logits.float(), -1)


def trained(run, step):
    """A version as the checkpoint holds it."""
    settings, base = run
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return logprobs(PeftModel.from_pretrained(model, settings.checkpoints_dir("p", "m") / f"{step:04d}"))


@pytest.mark.parametrize("step", [1, 2, None])
def test_a_merged_model_is_the_base_with_its_adapter(run, tmp_path, step):
    settings, _ = run
    done = export_model(settings, "m", tmp_path / "out", step=step, merged=True)
    assert (done.step, done.rank) == (step or 2, None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logprobs(model), trained(run, step or 2), rtol=1e-4, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template(CHAT, tokenize=False).startswith("<|im_start|>user\nhi<|im_end|>")
    assert not (tmp_path / "out" / "adapter_config.json").exists()


def test_an_adapter_loads_in_peft_with_the_name_of_its_base(run, tmp_path):
    settings, base = run
    export_model(settings, "p/m", tmp_path / "out")
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= set(names)
    assert not {"trainer.json", "optimizer.safetensors", "manifest.json"} & set(names)
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)  # transformers knows adapters
    torch.testing.assert_close(logprobs(model), trained(run, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("merged", [False, True])
def test_the_card_s_snippet_loads_what_was_exported(run, tmp_path, merged):
    settings, _ = run
    export_model(settings, "m", tmp_path / "my out", merged=merged)
    card = (tmp_path / "my out" / "README.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    namespace = {}
    exec(snippet, namespace)
    torch.testing.assert_close(logprobs(namespace["model"].float()), trained(run, 2), rtol=1e-4, atol=1e-5)


def test_the_packaged_model_s_adapter_loads_from_the_copy_that_was_prepared_here(run, tmp_path):
    """Its id is one of the hub, but its weights are not the hub's: they were rebuilt from four bits."""
    settings, base = run
    here = Settings(path=tmp_path / "art", cache=tmp_path / "cache")
    prepared = here.cache / "models" / SMALL_MODEL.replace("/", "--")
    shutil.copytree(base, prepared)
    shutil.copytree(settings.checkpoints_dir("p", "m"), here.checkpoints_dir("p", "m"))
    db = open_database(here.database_path)
    RunStore(db).register_model(RegisterModel(project="p", name="m", base_model=SMALL_MODEL))
    db.close()
    done = export_model(here, "m", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"base_model: {SMALL_MODEL}\n" in card
    assert f"an adapter for {SMALL_MODEL}" in card
    assert f"vllm serve {prepared} --enable-lora --max-lora-rank 16 --lora-modules m={tmp_path}/out" in card
    assert done.serve in card
    assert f"convert_lora_to_gguf.py {tmp_path}/out --base {prepared}" in card
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logprobs(model), trained(run, 2), rtol=1e-4, atol=1e-5)
    merged = export_model(here, "m", tmp_path / "whole", merged=True)
    assert merged.serve == f"vllm serve {tmp_path}/whole --served-model-name m"
    assert "ollama create m" in (tmp_path / "whole" / "README.md").read_text()


@pytest.mark.parametrize("merged", [False, True])
def test_files_are_readable_as_any_other(run, tmp_path, merged):
    settings, _ = run
    before = os.umask(0o022)
    try:
        export_model(settings, "m", tmp_path / "out", merged=merged)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {0o644}, modes
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_the_type_of_merged_weights_can_be_chosen(run, tmp_path):
    settings, _ = run
    export_model(settings, "m", tmp_path / "out", merged=True, dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert (logprobs(model) - trained(run, 2)).abs().mean() < 0.05


@pytest.mark.long
def test_the_command(run, tmp_path):
    settings, base = run
    command = [sys.executable, "-c", "from art.cli import main; main()", "export"]

    def art(*arguments):
        return subprocess.run(
            [*command, *arguments, "--path", str(settings.path)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )

    done = art("m", str(tmp_path / "out"), "--merged", "--step", "1")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/out" in done.stdout
    assert f"AutoModelForCausalLM.from_pretrained('{tmp_path}/out')" in done.stdout
    assert "Version 1 of p/m, a whole model:" in done.stdout
    adapter = art("m", str(tmp_path / "adapter"))
    assert f"Version 2 of p/m, an adapter for {base}:" in adapter.stdout
    assert f"vllm serve {base} --enable-lora --max-lora-rank 16 --lora-modules m={tmp_path}/adapter" in adapter.stdout
    failed = art("nobody", str(tmp_path / "other"))
    assert failed.returncode == 1
    assert "There is no model 'nobody'" in failed.stderr
    assert "Models there: p/m" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_what_cannot_be_exported_is_told_and_leaves_nothing(run, tmp_path):
    settings, _ = run
    with pytest.raises(NotFoundError, match=r"no checkpoint of step 7. Steps: \[1, 2\]"):
        export_model(settings, "m", tmp_path / "out", step=7)
    with pytest.raises(BadRequestError, match="Version 0 of m is the base model itself"):
        export_model(settings, "m", tmp_path / "out", step=0)
    with pytest.raises(NotFoundError, match="contains no run"):
        export_model(Settings(path=tmp_path / "nowhere"), "m", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ConflictError, match="is not empty"):
        export_model(settings, "m", tmp_path / "full")
    with pytest.raises(StorageFailedError, match=r"Exporting to .* failed"):
        export_model(settings, "m", tmp_path / "full" / "x" / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]


def test_a_damaged_checkpoint_is_not_exported(run, tmp_path):
    settings, base = run
    here = Settings(path=tmp_path / "art")
    db = open_database(here.database_path)
    RunStore(db).register_model(RegisterModel(project="p", name="m", base_model=str(base)))
    db.close()
    damaged = here.checkpoints_dir("p", "m") / "0001"
    damaged.parent.mkdir(parents=True)
    subprocess.run(["cp", "-r", settings.checkpoints_dir("p", "m") / "0001", damaged], check=True)
    (damaged / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(StorageFailedError, match="step 1 is damaged"):
        export_model(here, "m", tmp_path / "out", merged=True)
    assert not (tmp_path / "out").exists()
