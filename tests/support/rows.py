"""Where a row of a product does not depend on the rows beside it."""

import os

import torch


def equal_rows(dtype: torch.dtype) -> bool:
    """Whether they are the same bits here. In float32 this takes MKL's strict mode, which only Intel's CPUs have."""
    return dtype != torch.float32 or "STRICT" in os.environ.get("MKL_CBWR", "")
