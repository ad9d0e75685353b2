"""Finding the repository that the current directory belongs to."""

from pathlib import Path


def get_repo_root_path() -> str:
    """The nearest directory upwards that holds ``.git``, else ``"."``.

    >>> get_repo_root_path()  # outside of any repository
    '.'
    """
    here = Path.cwd()
    return next((str(directory) for directory in (here, *here.parents) if (directory / ".git").exists()), ".")
