"""The clock of retention: it goes on as the system's clock does, but does not jump with it."""

import sqlite3
import time

from art_backend.store.database import transaction

LONGEST_PAUSE_S = 86_400.0
"""Most seconds that a stop of the service counts: a month's stop looks the same as a jump of the system's clock."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 1), steady REAL NOT NULL, wall REAL NOT NULL);
"""


class SteadyClock:
    """Unix time by the system's clock at first, and from then on the seconds that have passed since."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._db.executescript(_SCHEMA)
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
