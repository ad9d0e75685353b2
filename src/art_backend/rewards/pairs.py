"""From preferences and scores to training and held-out pairs. Pure functions."""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from art.wire.rewards import PreferencePair, ScoredExample

_PARTNERS = 8
"""Most comparisons that one scored example begins: all pairs of many examples would be too many."""


def compare_examples(examples: Sequence[ScoredExample], seed: int) -> list[PreferencePair]:
    """Pairs of examples of the same group with different scores, the better one chosen."""
    groups: dict[str | None, list[ScoredExample]] = defaultdict(list)
    for example in examples:
        groups[example.group].append(example)
    draw = random.Random(seed)
    pairs: list[PreferencePair] = []
    for name, members in groups.items():
        if len(members) <= _PARTNERS + 1:
            candidates = list(combinations(members, 2))
        else:
            candidates = [(one, other) for one in members for other in draw.sample(members, _PARTNERS)]
        for one, other in candidates:
            if one.score != other.score:
                better, worse = (one, other) if one.score > other.score else (other, one)
                pairs.append(PreferencePair(chosen=better.messages, rejected=worse.messages, group=name))
    return pairs


def split_examples(
    examples: Sequence[ScoredExample], held_out: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair], list[PreferencePair]]:
    """Training, calibration and held-out pairs; no example is in two of them, nor is a named group."""
    keys = [example.group if example.group is not None else f"\0{i}" for i, example in enumerate(examples)]
    parts = _assign(keys, held_out, seed)
    chosen = [[examples[i] for i, key in enumerate(keys) if parts[key] == part] for part in range(3)]
    train, calibration, test = (compare_examples(part, seed) for part in chosen)
    return train, calibration, test


def split_pairs(
    pairs: Sequence[PreferencePair], held_out: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair], list[PreferencePair]]:
    """Training, calibration and held-out pairs; no task is in two of them."""
    keys = [pair.group if pair.group is not None else json.dumps(pair.chosen[:1]) for pair in pairs]
    parts = _assign(keys, held_out, seed)
    chosen = [[pairs[i] for i, key in enumerate(keys) if parts[key] == part] for part in range(3)]
    return chosen[0], chosen[1], chosen[2]


def _assign(keys: Sequence[str], held_out: float, seed: int) -> dict[str, int]:
    """Each task's part: 0 training, 1 calibration, 2 held out."""
    tasks = sorted(set(keys))
    random.Random(seed).shuffle(tasks)
    count = max(2, round(len(tasks) * held_out))
    return {task: 0 if i >= count else 1 + i % 2 for i, task in enumerate(tasks)}
