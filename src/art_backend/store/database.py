"""The one SQLite file of a service, and the clock that it keeps."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from art_backend.errors import StorageFailedError
from art_backend.store.private import private_file

LONGEST_LOG = 16_000
"""Pages of the write-ahead log (4 KiB each) at which a commit writes them back itself, should ``write_back`` be late."""

LONGEST_PAUSE_S = 86_400.0
"""Most seconds that a stop of the service counts: a month's stop looks the same as a jump of the system's clock."""

_CLOCK = """
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 1), steady REAL NOT NULL, wall REAL NOT NULL);
"""


def open_database(path: Path) -> sqlite3.Connection:
    """Open (and create) the database. Write-ahead logging makes a committed transaction survive ``kill -9``.

    The connection belongs to the event loop's thread. Transactions are explicit: see ``transaction``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    private_file(path)  # SQLite gives its log the same mode
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # lets deletions give space back; must come first
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LONGEST_LOG}")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def explain_damage(error: sqlite3.DatabaseError, directory: Path | None = None) -> StorageFailedError:
    """Say what to do about a database that cannot be read."""
    return StorageFailedError(
        f"The database{f' in {directory}' if directory else ''} cannot be read: {error}. If it is damaged, restore it from a backup, or move it "
        "away to start with an empty one; models then register again and continue from their checkpoints."
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run a block as one transaction: all of it is stored, or none.

    Raises:
        StorageFailedError: The disk is full or the file is not writable.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")  # a full disk may show here, and leaves the transaction open
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        raise StorageFailedError(
            f"The database could not be written ({error}). Free disk space, then try again."
        ) from error


def add_column(connection: sqlite3.Connection, table: str, column: str, kind: str) -> None:
    """Add a column to a table that an earlier release made without it."""
    if column not in {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def write_back(path: Path) -> None:
    """Move what is in the write-ahead log to the database itself. Call it often, in a separate thread.

    SQLite would do so within one commit in a hundred, which all callers would then wait for; commits go on beside this.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


class SteadyClock:
    """The clock of retention: the system's time at first, and from then on the seconds that have passed, whatever jumps that makes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._db.executescript(_CLOCK)
        row = self._db.execute("SELECT steady, wall FROM clock").fetchone()
        wall = time.time()
        begin = wall if row is None else row["steady"] + min(max(wall - row["wall"], 0.0), LONGEST_PAUSE_S)
        self._offset = begin - time.monotonic()
        self.save()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def save(self) -> None:
        """Store the time, for the next service; call it now and then."""
        with transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO clock VALUES (1, ?, ?)", (self.now(), time.time()))
