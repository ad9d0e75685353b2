"""What the README of an exported model says."""

from pathlib import Path

import pytest

from art_backend.models.card import ModelCard


def card(base_model="org/base", base_source="org/base", rank: int | None = 16):
    return ModelCard(Path("/exports/my model"), "games", "player", 3, base_model, base_source, rank)


def test_an_adapter_of_a_hub_model_names_its_id():
    text = card().write()
    assert text.startswith("---\nbase_model: org/base\nlibrary_name: peft\n")
    assert "Version 3 of `games/player`, an adapter for org/base, trained with ART." in text
    assert "vllm serve org/base --enable-lora --max-lora-rank 16 --lora-modules 'player=/exports/my model'" in text
    assert "hf download org/base --local-dir base\npython convert_hf_to_gguf.py base " in text
    assert "python convert_lora_to_gguf.py '/exports/my model' --base base --outfile adapter.gguf" in text
    assert "On another machine" not in text


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 8), (24, 32), (512, 512)])
def test_the_rank_is_one_that_vllm_takes(rank, allowed):
    assert f"--max-lora-rank {allowed} " in card(rank=rank).serve


def test_a_whole_model_is_served_under_its_name():
    text = card(rank=None).write()
    assert "library_name: transformers\n" in text
    assert "vllm serve '/exports/my model' --served-model-name player" in text
    assert "cd '/exports/my model' && echo 'FROM .' > Modelfile && ollama create player" in text
    assert "lora" not in text


def test_a_local_base_model_is_no_hub_id(tmp_path):
    text = card(base_model=str(tmp_path), base_source=str(tmp_path)).write()
    assert "base_model:" not in text
    assert f"convert_hf_to_gguf.py {tmp_path} " in text
