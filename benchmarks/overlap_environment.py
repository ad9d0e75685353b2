"""The task of ``benchmarks.overlap``, for all who train on it: how long the environment takes, what it says, what is rewarded."""

import math
import random
import statistics

TURNS, MAX_TOKENS = 5, 24
MEAN_S, P99_S = 1.0, 8.0
LEARNING_RATE = 3e-3


def sigma() -> float:
    """Of the log-normal distribution with this mean and 99th percentile: ln p99 = ln mean − σ²/2 + 2.326 σ."""
    z = statistics.NormalDist().inv_cdf(0.99)
    return z - math.sqrt(z * z - 2 * math.log(P99_S / MEAN_S))


def latency(*key: int) -> float:
    """Seconds that an environment takes for one turn."""
    spread = sigma()
    return random.Random(str(key)).lognormvariate(math.log(MEAN_S) - spread**2 / 2, spread)


def prompt(scenario: int) -> str:
    return f"Say something ({scenario})."


ANSWER = "And more?"
"""What the environment says after each turn."""


def letters(said: str) -> int:
    """Lower-case letters, which the reward counts."""
    return sum("a" <= character <= "z" for character in said)


def reward(counted: int) -> float:
    """Of a whole rollout with so many letters."""
    return counted / (TURNS * MAX_TOKENS)
