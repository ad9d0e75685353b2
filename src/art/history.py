"""Reading ``history.jsonl`` back."""

import json
from pathlib import Path
from typing import Any


def read_history(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, in order; none if there is no file. A last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise
    return rows


def best_step(rows: list[dict[str, Any]], metric: str) -> int | None:
    """The step with the highest mean of a metric, the earliest of several; ``None`` if it was never logged."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if isinstance(value := row.get(metric), (int, float)):
            values.setdefault(int(row["step"]), []).append(float(value))
    means = {step: sum(found) / len(found) for step, found in sorted(values.items())}
    return max(means, key=means.__getitem__) if means else None
