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
