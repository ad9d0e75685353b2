"""What is exported loads in plain transformers, and is what was trained."""

import json
import os
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from tests.support.tiny import build_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from art.wire import Conversation, LoraSpec, RegisterModel, SftOptions
from art_backend.errors import BadRequestError, ConflictError, NotFoundError, StorageFailedError
from art_backend.export import export_model
from art_backend.gateway.render import ChatRenderer
from art_backend.settings import Settings
from art_backend.store.database import open_database
from art_backend.store.runs import RunStore
from art_backend.training.conversations import render_conversation
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
    assert (done.step, done.merged) == (step or 2, True)
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


def test_the_type_of_merged_weights_can_be_chosen(run, tmp_path):
    settings, _ = run
    export_model(settings, "m", tmp_path / "out", merged=True, dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert (logprobs(model) - trained(run, 2)).abs().mean() < 0.05


def test_the_command(run, tmp_path):
    settings, _ = run
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
    assert "from_pretrained" in done.stdout
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
    with pytest.raises(NotFoundError, match="There is no run in"):
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
