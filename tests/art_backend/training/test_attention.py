"""Attention along a tree: every implementation against the dense mask, and the fused LoRA layer against PEFT's."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from tests.support.largest import LargestResult
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, MistralConfig, Olmo3Config, Qwen2Config, Qwen3Config

from art_backend.training.policy.attention import QueryBlocks, block_mask, branch_attention, dense_mask, layer_windows
from art_backend.training.policy.fused import FusedLoraLinear
from art_backend.training.rows.packing import TrainingRow, pack_rows

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pack():
    """A tree with branches on branches, some longer than a block, some of one token."""
    random = np.random.default_rng(0)

    def grow(stem, *lengths):
        return [np.concatenate([stem, random.integers(0, 50, n)]) for n in lengths]

    root = random.integers(0, 50, 70)
    first, second = grow(root, 40, 300)
    rows = [*grow(first, 1, 9, 150), *grow(second, 2, 30), *grow(root, 5)]
    trained = [np.arange(row.size) == row.size - 1 for row in rows]
    (pack,) = pack_rows(
        [TrainingRow(r, t, np.zeros(r.size), 1.0, 1.0, 1.0) for r, t in zip(rows, trained, strict=True)], 10_000
    )
    return pack


def draw(pack, heads, key_heads, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = [(heads, 16), (key_heads, 16), (key_heads, 16)]
    return [torch.randn(1, h, pack.size, d).to(dtype).requires_grad_() for h, d in shapes]


def mask_of(pack, window=None):
    return dense_mask(torch.from_numpy(pack.ends), torch.from_numpy(pack.depths), window)


def dense(q, k, v, pack, window=None, cap=None):
    if cap is None:
        mask = mask_of(pack, window)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, dim=1) for x in (k, v))
    scores = torch.tanh(q @ k.transpose(2, 3) * 0.3 / cap) * cap
    return (scores.masked_fill(~mask_of(pack, window), -torch.inf).softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3, 75, 100_000])
def test_the_dense_mask_is_the_last_part_of_the_ancestry(pack, window):
    mask = mask_of(pack, window)
    for branch in pack.branches:
        path = [*branch.ancestors.tolist(), branch.start]
        assert torch.nonzero(mask[branch.start]).flatten().tolist() == path[-(window or len(path)) :]


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("size", [1, 7, 128, 10_000])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (1, None), (20, None), (150, None), (None, 1.5), (20, 0.5)])
def test_branch_attention_equals_the_dense_mask(pack, heads, key_heads, size, window, cap):
    results = []
    for kind in ("branches", "dense"):
        q, k, v = draw(pack, heads, key_heads)
        if kind == "branches":
            how = {"blocks": QueryBlocks(pack, CPU, size), "scaling": 0.3, "sliding_window": window, "softcap": cap}
            output, _ = branch_attention(torch.nn.Module(), q, k, v, None, **how)
        else:
            output = dense(q, k, v, pack, window, cap)
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        results.append((output.detach(), q.grad, k.grad, v.grad))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_branch_attention_in_bfloat16_is_as_exact_as_its_inputs(pack):
    q, k, v = draw(pack, 6, 2, torch.bfloat16)
    output, _ = branch_attention(torch.nn.Module(), q, k, v, None, blocks=QueryBlocks(pack, CPU), scaling=0.3)
    exact = dense(q.double(), k.double(), v.double(), pack)
    # One rounding of the weights and one of the output: half a unit in the last place (2⁻⁹) each, and little more.
    assert (output.double() - exact).abs().max() < 3 * 2**-9 * exact.abs().max()


def test_gradients_in_bfloat16_do_not_lose_the_digits_that_a_large_common_score_takes(pack):
    # Every key has the same large part, as real ones do: scores lie around 50, where bfloat16 counts in quarters.
    q, k, v = draw(pack, 6, 2, torch.bfloat16)
    with torch.no_grad():
        q += 4
        k += 3
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(1)
    upstream = torch.randn(1, pack.size, 6, 16).bfloat16()
    output, _ = branch_attention(torch.nn.Module(), q, k, v, None, blocks=QueryBlocks(pack, CPU), scaling=0.3)
    output.backward(upstream)
    dense(*wide, pack).backward(upstream.double())
    for ours, expected in zip((q, k, v), wide, strict=True):
        assert ours.grad is not None
        assert expected.grad is not None
        assert (ours.grad - expected.grad).norm() < 0.02 * expected.grad.norm()


def test_capped_attention_in_bfloat16_is_as_exact_as_its_inputs(pack):
    q, k, v = draw(pack, 6, 2, torch.bfloat16)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    upstream = torch.randn(1, pack.size, 6, 16).bfloat16()
    output, _ = branch_attention(
        torch.nn.Module(), q, k, v, None, blocks=QueryBlocks(pack, CPU), scaling=0.3, softcap=1.5
    )
    exact = dense(*wide, pack, cap=1.5)
    assert (output.double() - exact).abs().max() < 3 * 2**-9 * exact.abs().max()
    output.backward(upstream)
    exact.backward(upstream.double())
    for ours, expected in zip((q, k, v), wide, strict=True):
        assert (ours.grad - expected.grad).norm() < 0.02 * expected.grad.norm()


def test_an_argument_that_might_change_the_result_is_refused(pack):
    q, k, v = draw(pack, 4, 2)
    call = {"blocks": QueryBlocks(pack, CPU), "position_ids": None, "s_aux": None}
    branch_attention(torch.nn.Module(), q, k, v, None, **call)
    with pytest.raises(ValueError, match="Module attends with s_aux, which tree attention does not know"):
        branch_attention(torch.nn.Module(), q, k, v, None, **call | {"s_aux": torch.zeros(4)})


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LlamaConfig(), None),
        (MistralConfig(sliding_window=None), None),
        (MistralConfig(sliding_window=24), 24),
        (Qwen2Config(sliding_window=24), None),
        (Qwen3Config(num_hidden_layers=2, layer_types=["full_attention"] * 2), None),
        (
            Olmo3Config(num_hidden_layers=2, sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
            {"sliding_attention": 8, "full_attention": None},
        ),
        (
            Olmo3Config(num_hidden_layers=1, sliding_window=8, layer_types=["sliding_attention"]),
            {"sliding_attention": 8},
        ),
    ],
)
def test_the_windows_of_a_model_s_layers(config, windows):
    assert layer_windows(config) == windows


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 1, 20, 150, 300])
def test_flex_attention_gets_the_same_mask(pack, window):
    ends, depths = torch.from_numpy(pack.ends), torch.from_numpy(pack.depths)
    q, k, v = (x.detach() for x in draw(pack, 4, 2))
    output = flex_attention(q, k, v, block_mask=block_mask(ends, depths, window), scale=0.3, enable_gqa=True)
    assert isinstance(output, torch.Tensor)
    torch.testing.assert_close(output.transpose(1, 2), dense(q, k, v, pack, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[2], [128], [129, 2], [700, 300, 41], [256, 256, 256]])
@pytest.mark.parametrize("stem", [0, 5, 128, 400])
@pytest.mark.parametrize("window", [None, 1, 140, 300])
def test_the_block_mask_is_the_one_that_torch_makes_of_every_pair(sizes, stem, window):
    """The stem's tokens are everybody's ancestors, and each other branch follows half of the one before it."""
    random = np.random.default_rng(stem)
    rows, path = [], random.integers(0, 50, stem)
    for size in sizes:
        rows.append(np.concatenate([path, random.integers(0, 50, size)]))
        path = rows[-1][: stem + size // 2]
    (pack,) = pack_rows(
        [TrainingRow(r, np.arange(r.size) == r.size - 1, np.zeros(r.size), 1.0, 1.0, 1.0) for r in rows], 10_000
    )
    ends, depths = torch.from_numpy(pack.ends), torch.from_numpy(pack.depths)
    ours = block_mask(ends, depths, window)

    def attends(batch, head, query, key):
        seen = (key <= query) & (query < ends[key])
        return seen if window is None else seen & (depths[query] - depths[key] < window)

    theirs = create_block_mask(attends, None, None, pack.size, pack.size, device="cpu")
    assert (ours.seq_lengths, ours.BLOCK_SIZE) == (theirs.seq_lengths, theirs.BLOCK_SIZE)
    if (
        window is not None
    ):  # depths are compared block by block: some of the blocks may turn out empty, and none is missing
        assert (ours.to_dense() >= theirs.to_dense()).all()
    for name in ("kv", "full_kv", "q", "full_q") if window is None else ("full_kv", "full_q"):
        for part in (f"{name}_num_blocks", f"{name}_indices"):
            assert torch.equal(getattr(ours, part), getattr(theirs, part)), part


def test_the_block_mask_of_a_long_pack_takes_no_memory_for_pairs():
    ends, depths = torch.full((65_536,), 65_536), torch.arange(65_536)
    with LargestResult() as seen:
        assert block_mask(ends, depths).sparsity() == pytest.approx(50, abs=1)
        assert block_mask(ends, depths, 4096).sparsity() == pytest.approx(94, abs=1)
    assert seen.numbers <= 4 * (65_536 / 128) ** 2


class Toy(torch.nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.layer = torch.nn.Linear(6, 10, bias=bias)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_lora_layer_equals_peft_s(bias):
    results = []
    for custom in (False, True):
        torch.manual_seed(0)
        config = LoraConfig(r=3, lora_alpha=7, target_modules=["layer"], init_lora_weights=False)
        if custom:
            config._register_custom_module({torch.nn.Linear: FusedLoraLinear})
        model = get_peft_model(Toy(bias), config)
        layer = model.base_model.model.layer
        assert type(layer) is (FusedLoraLinear if custom else Linear)
        x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = model(x)
        y.square().sum().backward()
        with model.disable_adapter():
            off = model(x)
        grads = [p.grad for p in model.parameters() if p.requires_grad]
        results.append([y.detach(), off.detach(), x.grad, *grads])
    assert len(results[0]) == 5
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)
