"""Noting in a W&B run's config where its weights came from."""

from typing import Any


def record_provenance(run: Any, provenance: str) -> None:
    """Append to ``run.config["provenance"]``, unless it is the last entry already."""
    entries = list(run.config.get("provenance") or [])
    if not entries or entries[-1] != provenance:
        run.config.update({"provenance": [*entries, provenance]}, allow_val_change=True)
