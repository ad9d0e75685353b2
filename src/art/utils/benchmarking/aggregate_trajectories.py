"""An older path of ``art.compat.benchmarking``."""

from art.compat.benchmarking import load_aggregated_trajectories, load_latest_metrics

__all__ = ["load_aggregated_trajectories", "load_latest_metrics"]
