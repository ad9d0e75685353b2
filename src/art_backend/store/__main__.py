"""``python -m art_backend.store DIRECTORY ROLLOUT…``: print captured rollouts of a service's directory, a JSON line each.

It reads beside a service that runs there.
"""

import sys
from contextlib import closing
from pathlib import Path

from art_backend.errors import ServiceError
from art_backend.settings import Settings
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database


def main() -> None:
    """Print each rollout as a ``RolloutTree``; exit with 1 if one is not there."""
    directory, *rollouts = sys.argv[1:]
    database = Settings(path=Path(directory)).database_path
    if not database.is_file():
        sys.exit(f"{directory} contains no run.")
    with closing(open_database(database)) as db:
        captures = CaptureStore(db)
        try:
            for rollout in rollouts:
                print(captures.describe(rollout).model_dump_json())
        except ServiceError as error:
            sys.exit(error.message)


if __name__ == "__main__":
    main()
