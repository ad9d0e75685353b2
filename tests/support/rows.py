"""Where a row of a product does not depend on the rows beside it."""

import os

import torch


def equal_rows(dtype: torch.dtype) -> bool:
    """Whether they are the same bits here, for the small products of a tiny model.

    In float32 this takes MKL's strict mode, which only Intel's CPUs have.
    """
    return dtype != torch.float32 or "STRICT" in os.environ.get("MKL_CBWR", "")


def equal_long_rows(dtype: torch.dtype) -> bool:
    """Whether they are the same bits for hundreds of rows and sums of thousands, which AMX sums in an order of its own."""
    amx = torch.cpu.get_capabilities().get("amx_bf16", False) and "ONEDNN_MAX_CPU_ISA" not in os.environ
    return equal_rows(dtype) and not (dtype == torch.bfloat16 and amx)
