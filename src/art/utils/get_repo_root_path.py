"""An older path of ``art.logs.directories``."""

from art.logs.directories import get_repo_root_path

__all__ = ["get_repo_root_path"]
