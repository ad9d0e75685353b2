"""The metric history of a model."""

from pydantic import FiniteFloat

from art.wire.base import Wire


class MetricRow(Wire):
    """Metrics of one step. The natural key is (step, split): sending a row again merges its metrics into the first."""

    step: int
    split: str
    metrics: dict[str, FiniteFloat]
    recorded_at: float | None = None
    """Unix time in seconds; set by the service when absent."""


class MetricHistory(Wire):
    """Rows of a model's metrics, in order."""

    rows: list[MetricRow]
