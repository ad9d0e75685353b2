"""Other weights in the place of those that are served."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.art_backend.engines.conftest import logprobs_by_transformers
from transformers import AutoModelForCausalLM

from art_backend.engines.torch_engine.engine import UnknownModelError
from art_backend.engines.torch_engine.runner import WeightsError

PROMPT = list(range(5, 45))


@pytest.fixture
def version(tiny_model, tmp_path):
    """Another version of the model, as a trainer saves it."""
    path = tmp_path / "version"
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    save_file({"exp_avg": torch.zeros(3)}, path / "optimizer.safetensors")
    return path


def expected(path, completion):
    return logprobs_by_transformers(path, PROMPT, completion)


def test_the_new_weights_answer_and_nothing_of_the_old_cache_is_used(make_engine, tiny_model, version):
    driver = make_engine()
    before = driver.generate(PROMPT)
    assert before.logprobs == pytest.approx(expected(tiny_model("llama"), before), abs=1e-4)
    driver.do(driver.engine.load_weights("p/m@1", version))
    computed = driver.computed
    after = driver.generate(PROMPT, model="p/m@1")
    assert driver.computed - computed >= len(PROMPT), "the prompt is computed anew"
    assert after.logprobs == pytest.approx(expected(version, after), abs=1e-4)
    assert after.logprobs != pytest.approx(before.logprobs, abs=0.01)
    with pytest.raises(UnknownModelError, match="'base' does not exist"):
        driver.submit(PROMPT)
    driver.do(driver.engine.load_weights("base", tiny_model("llama")))
    again = driver.generate(PROMPT)
    assert (again.token_ids, again.logprobs) == (before.token_ids, before.logprobs)


def test_weights_are_not_replaced_under_a_completion(make_engine, version):
    driver = make_engine()
    driver.submit(PROMPT, max_tokens=3)
    driver.obey()
    with pytest.raises(WeightsError, match="Completions are in flight"):
        driver.do(driver.engine.load_weights("p/m@1", version))
    driver.run()
    driver.do(driver.engine.load_weights("p/m@1", version))


def test_other_models_and_damaged_files_change_nothing(make_engine, tiny_model, version, tmp_path):
    driver = make_engine()
    before = driver.generate(PROMPT)
    file = version / "model.safetensors"
    weights = load_file(file)
    name = "model.norm.weight"
    for wrong, message in (
        ({n: t for n, t in weights.items() if n != name}, "lacks 1 weights .* model.norm.weight"),
        (weights | {name: torch.zeros(3)}, r"has shape \[3\]"),
        (weights | {"model.extra": torch.zeros(3)}, "no such weight"),
    ):
        save_file(wrong, file)
        with pytest.raises(WeightsError, match=message):
            driver.do(driver.engine.load_weights("p/m@1", version))
    file.write_bytes(b"x" * 100)
    with pytest.raises(WeightsError, match="no readable weights"):
        driver.do(driver.engine.load_weights("p/m@1", version))
    with pytest.raises(WeightsError, match="lacks"):
        driver.do(driver.engine.load_weights("p/m@1", tmp_path / "nowhere"))
    assert driver.generate(PROMPT).logprobs == pytest.approx(before.logprobs, abs=1e-4)
