"""From trajectories in JSONL files to Parquet files."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from art.utils.legacy_trajectories import (
    deserialize_trajectory_groups,
    dict_to_history,
    dict_to_message_or_choice,
    dict_to_trajectory,
    dict_to_trajectory_group,
    history_to_dict,
    message_or_choice_to_dict,
    serialize_trajectory_groups,
    trajectory_group_to_dict,
    trajectory_to_dict,
)
from art.utils.output_dirs import get_models_dir
from art.utils.trajectory_logging import write_trajectory_groups_parquet

__all__ = [
    "MigrationResult",
    "auto_migrate_on_register",
    "deserialize_trajectory_groups",
    "dict_to_history",
    "dict_to_message_or_choice",
    "dict_to_trajectory",
    "dict_to_trajectory_group",
    "history_to_dict",
    "message_or_choice_to_dict",
    "migrate_all_models",
    "migrate_jsonl_to_parquet",
    "migrate_model_dir",
    "migrate_trajectories_dir",
    "serialize_trajectory_groups",
    "trajectory_group_to_dict",
    "trajectory_to_dict",
]

_USUAL_RATIO = 25
"""How much smaller Parquet files usually are."""


@dataclass
class MigrationResult:
    """What a migration did; results add up with ``+``.

    >>> (MigrationResult(1, bytes_before=100, bytes_after=10) + MigrationResult(1)).compression_ratio
    10.0
    """

    files_migrated: int = 0
    files_skipped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    errors: list[str] = field(default_factory=list[str])

    @property
    def compression_ratio(self) -> float:
        """Size before over size after; 0 if nothing is there after."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 0.0

    @property
    def space_saved(self) -> int:
        return self.bytes_before - self.bytes_after

    def __add__(self, other: "MigrationResult") -> "MigrationResult":
        return MigrationResult(
            self.files_migrated + other.files_migrated,
            self.files_skipped + other.files_skipped,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            [*self.errors, *other.errors],
        )


def migrate_jsonl_to_parquet(path: str | Path, delete_original: bool = True, dry_run: bool = False) -> MigrationResult:
    """Write the ``.parquet`` beside a ``.jsonl`` file.

    Args:
        delete_original: Delete the source once the new file is complete.
        dry_run: Only estimate.

    >>> _ = Path("0001.jsonl").write_text('{"trajectories": [{"reward": 1.0, "messages_and_choices": []}]}\\n')
    >>> migrate_jsonl_to_parquet("0001.jsonl").files_migrated
    1
    """
    source = Path(path)
    if not source.exists():
        return MigrationResult(errors=[f"{source}: no such file"])
    if source.suffix != ".jsonl":
        return MigrationResult(files_skipped=1)
    before = source.stat().st_size
    if dry_run:
        return MigrationResult(files_migrated=1, bytes_before=before, bytes_after=before // _USUAL_RATIO)
    target = source.with_suffix(".parquet")
    try:
        groups = deserialize_trajectory_groups(source.read_text(encoding="utf-8"))
        write_trajectory_groups_parquet(groups, target)
    except (ValueError, OSError) as error:
        return MigrationResult(errors=[f"{source}: {error}"])
    if delete_original:
        source.unlink()
    return MigrationResult(files_migrated=1, bytes_before=before, bytes_after=target.stat().st_size)


def migrate_trajectories_dir(
    directory: str | Path,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[Path], None] | None = None,
) -> MigrationResult:
    """Migrate every ``.jsonl`` file below a directory.

    Args:
        progress_callback: Called with each file before it is migrated.

    >>> migrate_trajectories_dir("trajectories", dry_run=True).files_migrated
    0
    """
    total = MigrationResult()
    for source in sorted(Path(directory).rglob("*.jsonl")):
        if progress_callback is not None:
            progress_callback(source)
        total += migrate_jsonl_to_parquet(source, delete_originals, dry_run)
    return total


def migrate_model_dir(
    directory: str | Path,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[Path], None] | None = None,
) -> MigrationResult:
    """Migrate a model's ``trajectories``, if it has any.

    >>> migrate_model_dir(".art/p/models/m", dry_run=True).files_migrated
    0
    """
    return migrate_trajectories_dir(Path(directory) / "trajectories", delete_originals, dry_run, progress_callback)


def migrate_all_models(
    art_path: str | Path,
    project_name: str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[Path], None] | None = None,
) -> MigrationResult:
    """Migrate all models of a project.

    >>> migrate_all_models(".art", "p", dry_run=True).files_migrated
    0
    """
    total = MigrationResult()
    models = Path(get_models_dir(project_name, str(art_path)))
    for directory in sorted(models.iterdir()) if models.is_dir() else ():
        total += migrate_model_dir(directory, delete_originals, dry_run, progress_callback)
    return total


def auto_migrate_on_register(directory: str | Path) -> MigrationResult:
    """Migrate a model's trajectories when it is registered; sources that could not be read stay, and are told.

    >>> auto_migrate_on_register(".art/p/models/m").errors
    []
    """
    result = migrate_model_dir(directory)
    for error in result.errors:
        print(f"warning: a trajectory file was not migrated: {error}")
    return result
