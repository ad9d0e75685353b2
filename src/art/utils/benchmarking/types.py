"""An older path of ``art.compat.benchmarking``."""

from art.compat.benchmarking import BenchmarkModelKey

__all__ = ["BenchmarkModelKey"]
