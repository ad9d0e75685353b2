"""An older path of ``art.compat.benchmarking``."""

from art.compat.benchmarking import filter_rename_model_split

__all__ = ["filter_rename_model_split"]
