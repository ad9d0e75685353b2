"""An older path of ``art.compat.benchmarking``."""

from art.compat.benchmarking import load_trajectories

__all__ = ["load_trajectories"]
