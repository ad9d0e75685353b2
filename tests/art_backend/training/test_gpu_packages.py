"""What only a GPU can run, checked against the packages themselves: names, signatures, and bitsandbytes' arithmetic on the CPU.

``make setup`` puts the packages, without what they depend on, into a folder beside the environment that nothing imports.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from art.wire import LoraSpec
from art_backend.training.policy import unsloth

PACKAGES = Path(sys.prefix) / "gpu-only"


def function_of(file, owner, name):
    """The definition of ``owner.name`` in the source of a package."""
    path = PACKAGES / file
    assert path.exists(), f"{path} is missing; run `make setup`"
    (found,) = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == owner]
    (function,) = [n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found, function


def names_of(function):
    return {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def test_unsloth_takes_our_arguments():
    loader, load = function_of("unsloth/models/loader.py", "FastLanguageModel", "from_pretrained")
    assert unsloth.load_arguments(Path("/m"), torch.bfloat16, 64).keys() <= names_of(load)
    (base,) = [b.id for b in loader.bases if isinstance(b, ast.Name)]
    for name, arguments in (
        ("get_peft_model", unsloth.adapter_arguments(LoraSpec())),
        ("for_training", unsloth.TRAINING_ARGUMENTS),
    ):
        _, function = function_of("unsloth/models/llama.py", base, name)
        assert function.args.args[0].arg == "model"
        assert arguments.keys() <= names_of(function)
    exports = ast.parse((PACKAGES / "unsloth/models/__init__.py").read_text()).body
    assert any(isinstance(n, ast.ImportFrom) and "FastLanguageModel" in [a.name for a in n.names] for n in exports)


def test_unsloth_is_neither_used_nor_imported_without_a_gpu(caplog):
    unsloth.is_usable.cache_clear()
    with caplog.at_level("INFO"):
        assert [unsloth.is_usable(), unsloth.is_usable()] == [False, False]
    assert len(caplog.records) == 1, "said once"
    assert "unsloth" not in sys.modules


SCRIPT = """
import torch
from art_backend.training.optimizers import FlatAdamW, PagedAdamW8bit
torch.manual_seed(0)
gradients = [torch.randn(20_000) for _ in range(4)]
step = {"learning_rate": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
def run(kind, restart=None, **options):
    weights = torch.ones(20_000)
    optimizer = kind(weights, **options)
    assert optimizer.tensors() == {}
    for i, gradient in enumerate(gradients):
        if i == 2 and restart is not None:
            saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
            optimizer = kind(weights, **restart)
            optimizer.load(saved)
        optimizer.step(gradient.clone(), **step)
    return weights, optimizer.tensors()
exact, _ = run(FlatAdamW)
short, tensors = run(PagedAdamW8bit)
again, _ = run(PagedAdamW8bit, restart={})
assert torch.equal(short, again), "resuming changed the step"
cut = {"largest": 8192}
for before, after in ((cut, None), (cut, {}), ({}, cut)):
    again, found = run(PagedAdamW8bit, after, **before)
    assert torch.equal(short, again), (before, after)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
(group,) = PagedAdamW8bit(torch.empty(7 * 10**9, device="meta"))._optimizer.param_groups
assert sum(part.numel() for part in group["params"]) == 7 * 10**9
assert max(part.numel() for part in group["params"]) < 2**31, "bitsandbytes counts in 32 bits"
assert tensors["state1"].dtype == torch.uint8 and int(tensors["step"]) == 4
error = ((short - exact).abs().mean() / (exact - 1).abs().mean()).item()
assert error < 0.05, error
print("ok")
"""


@pytest.mark.filterwarnings("ignore")
def test_the_8_bit_optimiser_follows_adamw_and_resumes_bit_for_bit_however_its_weights_are_cut():
    assert (PACKAGES / "bitsandbytes").exists(), f"{PACKAGES}/bitsandbytes is missing; run `make setup`"
    paths = ":".join([*(p for p in sys.path if p), str(PACKAGES)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "ok", done.stderr
