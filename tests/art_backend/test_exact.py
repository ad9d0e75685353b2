"""bfloat16 products with float32 results, against float64."""

import pytest
import torch

from art_backend import exact


@pytest.mark.parametrize("product", ["linear", "batched"])
def test_results_from_bfloat16_are_far_more_exact_than_bfloat16(product):
    torch.manual_seed(0)
    shape = (2, 40, 64) if product == "batched" else (40, 576)
    a, b = torch.randn(shape).bfloat16() * 4, torch.randn(shape).bfloat16() * 4
    truth = a.double() @ b.double().mT
    result = getattr(exact, product)(a, b)
    assert result.dtype == torch.float32
    rounded = (a @ b.mT).double()
    assert (result - truth).abs().max() < (rounded - truth).abs().max() / 50


@pytest.mark.parametrize("product", ["linear", "batched"])
def test_float32_stays_as_it_is(product):
    torch.manual_seed(0)
    shape = (2, 5, 8) if product == "batched" else (5, 8)
    a, b = torch.randn(shape), torch.randn(shape)
    torch.testing.assert_close(getattr(exact, product)(a, b), a @ b.mT)


@pytest.mark.parametrize("product", ["linear", "batched", "weighted"])
def test_a_row_alone_gives_the_same_bits_as_among_others(product):
    torch.manual_seed(0)
    if product == "linear":
        a, b = torch.randn(400, 2048).bfloat16(), torch.randn(300, 2048).bfloat16()
        rows = [exact.linear(a[i : i + 1], b) for i in range(400)]
    else:
        a, b = torch.randn(1, 400, 2048), torch.randn(1, 300, 2048).bfloat16()
        a = a.bfloat16() if product == "batched" else a.softmax(-1)
        b = b if product == "batched" else b.mT.contiguous()
        rows = [getattr(exact, product)(a[:, i : i + 1], b) for i in range(400)]
    together = getattr(exact, product)(a, b)
    assert torch.equal(torch.cat(rows, dim=-2), together)
