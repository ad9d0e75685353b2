"""An older path of ``art.compat.benchmarking``."""

from art.compat.benchmarking import percentage_comparison_bar_chart, training_progress_chart

__all__ = ["percentage_comparison_bar_chart", "training_progress_chart"]
