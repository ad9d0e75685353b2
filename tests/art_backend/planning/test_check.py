import json
import logging

import pytest

from art.wire import LoraSpec, Optimizer, SftOptions, TrainerKind, TrainOptions
from art_backend.devices import Device
from art_backend.errors import BadRequestError
from art_backend.planning.architecture import KNOWN
from art_backend.planning.memory import GIB, Wanted, plan
from art_backend.planning.verdict import check_training


@pytest.fixture
def base(tmp_path):
    """Of a base model of 1.5 B parameters, its configuration."""
    config = {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def check(path, device, options, **changes):
    settings = {"lora": LoraSpec(), "full": False, "context": 4096, "placement": "colocated", **changes}
    check_training(Device("NVIDIA Test", device), "it", path, options, **settings)


def test_a_step_that_cannot_fit_is_refused_with_what_would(base):
    with pytest.raises(
        BadRequestError, match=r"it does not fit into 24\.0 GB: training takes 24\.\d GB\. Train with"
    ) as error:
        check(base, 24 * GIB, TrainOptions())
    assert error.value.param == "options.micro_batch_tokens"
    assert "micro_batch_tokens=8192" in error.value.message
    assert "art doctor --model it --context 4096" in error.value.message
    check(base, 24 * GIB, TrainOptions(micro_batch_tokens=8192))
    check(base, 24 * GIB, TrainOptions(gradient_checkpointing=True))
    check(base, 24 * GIB, SftOptions(micro_batch_tokens=8192))
    with pytest.raises(BadRequestError, match=r"training takes 5\d"):
        check(base, 48 * GIB, TrainOptions(micro_batch_tokens=8192), full=True)
    smaller = TrainOptions(optimizer=Optimizer.PAGED_ADAMW_8BIT, gradient_checkpointing=True)
    check(base, 48 * GIB, smaller, full=True)


def test_what_fits_only_just_is_logged(base, caplog):
    check(base, plan(Wanted(KNOWN["Qwen2.5-1.5B"], 48 * GIB)).training, TrainOptions())
    assert "but only just" in caplog.text
    assert "NVIDIA Test" in caplog.text


def test_what_is_not_planned_is_said(base, caplog):
    caplog.set_level(logging.INFO)
    check(base, 1, TrainOptions(trainer=TrainerKind.TRL))
    assert "cannot plan the memory of TRL's trainer" in caplog.text
    (base / "config.json").write_text('{"model_type": "mamba"}')
    check(base, 1, TrainOptions())
    assert "No memory plan for training it: model: the memory of mamba models" in caplog.text
