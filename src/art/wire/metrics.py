"""The metric history of a model."""

from pydantic import FiniteFloat

from art.wire.base import Step, Wire


class MetricRow(Wire):
    """Metrics of one step. The natural key is (step, split): sending a row again merges its metrics into the first.

    >>> MetricRow(step=3, split="val", metrics={"val/reward": 0.5}).recorded_at is None
    True
    """

    step: Step
    split: str
    metrics: dict[str, FiniteFloat]
    recorded_at: float | None = None
    """Unix time in seconds; set by the service when absent."""


class MetricHistory(Wire):
    """Rows of a model's metrics, in order.

    >>> MetricHistory(rows=[MetricRow(step=3, split="val", metrics={"val/reward": 0.5})]).rows[0].step
    3
    """

    rows: list[MetricRow]
