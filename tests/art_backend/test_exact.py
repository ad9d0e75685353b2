"""Products with float32 results, against float64; their rows one by one."""

import pytest
import torch
from tests.support.rows import equal_long_rows

from art_backend.models import exact


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("product", ["linear", "batched", "weighted"])
def test_a_row_gives_the_same_bits_alone_and_among_any_number_of_others(product, dtype):
    torch.manual_seed(0)
    a, b = torch.randn(1, 400, 2048), torch.randn(1, 300, 2048).to(dtype)
    a = a.softmax(-1) if product == "weighted" else a.to(dtype)
    b = b.mT.contiguous() if product == "weighted" else b
    if product == "linear":
        a, b = a[0], b[0]
    multiply = getattr(exact, product)
    together = multiply(a, b)
    for count in (1, 2, 3, 7, 50, 133):
        rows = torch.cat([multiply(part, b) for part in a.split(count, dim=-2)], dim=-2)
        if equal_long_rows(dtype):
            assert torch.equal(rows, together)
        else:
            tolerance = 2**-7 if rows.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(rows, together, rtol=tolerance, atol=2e-3)
