"""The older home of ``art.logs.parquet``."""

from art.logs.parquet import read_trajectory_groups_parquet, write_trajectory_groups_parquet

__all__ = ["read_trajectory_groups_parquet", "write_trajectory_groups_parquet"]
