"""The SQLite file: its log is written back beside the commits."""

import contextlib
import shutil
import sqlite3

from art_backend.store.database import open_database, transaction, write_back


def count(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM t").fetchone()[0]


def test_the_log_is_written_back_and_begins_anew(tmp_path):
    path, log, alone = tmp_path / "art.db", tmp_path / "art.db-wal", tmp_path / "alone.db"
    database = open_database(path)
    database.execute("CREATE TABLE t (content BLOB)")

    def add(rows):
        for _ in range(rows):
            with transaction(database):
                database.execute("INSERT INTO t VALUES (zeroblob(4000))")

    write_back(path)
    add(2000)
    shutil.copy(path, alone)
    assert count(alone) == 0, "no commit wrote the log back, though by default SQLite's would every thousand pages"
    with transaction(database):  # in the middle of somebody's transaction
        database.execute("INSERT INTO t VALUES (zeroblob(4000))")
        write_back(path)
    write_back(path)
    shutil.copy(path, alone)
    assert count(alone) == count(path) == 2001, "the database has all of it without its log"
    size = log.stat().st_size
    add(1000)
    assert log.stat().st_size == size, "the log is used from its beginning again"
    database.close()
