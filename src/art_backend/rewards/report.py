"""How far a reward model can be trusted: temperature, and the report on held-out pairs. Pure functions."""

import math
from collections.abc import Sequence

import numpy as np

from art.wire.rewards import CalibrationBin, RewardReport

_BINS = 5
_Z = 1.959963984540054
_TEMPERATURES = np.exp(np.linspace(math.log(0.02), math.log(50), 2001))


def fit_temperature(margins: Sequence[float]) -> float:
    """The temperature T with the lowest log loss of sigmoid(margin / T), between 0.02 and 50.

    Args:
        margins: Score of the better answer minus that of the worse, per calibration pair. A confident mistake is added, so
            that a handful of pairs without one does not make the model look certain.

    Guo et al., *On Calibration of Modern Neural Networks* (2017), for one logit.
    """
    found = np.asarray(margins, dtype=np.float64)
    found = np.append(found, -np.abs(found).mean())
    losses = np.logaddexp(0.0, -found[None, :] / _TEMPERATURES[:, None]).mean(axis=1)
    return float(_TEMPERATURES[int(losses.argmin())])


def build_report(margins: Sequence[float], temperature: float, counts: dict[str, int]) -> RewardReport:
    """The report on held-out pairs.

    Args:
        margins: Raw score of the better answer minus that of the worse, per pair.
        counts: ``trained_pairs``, ``calibration_pairs`` and ``overlong_pairs``.
    """
    scaled = np.asarray(margins, dtype=np.float64) / temperature
    probability = 1.0 / (1.0 + np.exp(-scaled))
    right = scaled > 0
    accuracy = float(right.mean())
    low, high = wilson(int(right.sum()), len(scaled))
    confidence = np.maximum(probability, 1 - probability)
    by_confidence = np.array_split(np.argsort(confidence, kind="stable"), min(_BINS, len(scaled)))
    bins = [
        CalibrationBin(predicted=float(confidence[m].mean()), observed=float(right[m].mean()), count=len(m))
        for m in by_confidence
    ]
    return RewardReport(
        **counts,
        held_out_pairs=len(scaled),
        accuracy=accuracy,
        accuracy_low=low,
        accuracy_high=high,
        log_loss=float(np.logaddexp(0.0, -scaled).mean()),
        brier=float(((1 - probability) ** 2).mean()),
        calibration_error=sum(abs(b.predicted - b.observed) * b.count for b in bins) / len(scaled),
        temperature=temperature,
        bins=bins,
    )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (Wilson 1927)."""
    share, z2 = successes / trials, _Z**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return centre - half, centre + half
