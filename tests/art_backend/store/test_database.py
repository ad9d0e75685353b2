"""The SQLite file: its log is written back beside the commits."""

import contextlib
import shutil
import sqlite3

import pytest

from art_backend.errors import ConflictError
from art_backend.store.database import open_database, transaction, write_back
from art_backend.store.runs import RunStore


def count(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM t").fetchone()[0]


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path):
    database = open_database(tmp_path / "art.db")
    database.execute("CREATE TABLE t (x INTEGER PRIMARY KEY, y REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), transaction(database):
        database.execute("INSERT INTO t VALUES (1, 2)")  # the constraint is checked by the commit
    with transaction(database):
        database.execute("INSERT INTO t VALUES (3, NULL)")
    assert [row["x"] for row in database.execute("SELECT x FROM t")] == [3]


def test_a_database_of_an_earlier_release_gets_what_it_lacks(tmp_path):
    database = open_database(tmp_path / "art.db")
    database.execute(
        "CREATE TABLE jobs (id TEXT PRIMARY KEY, project TEXT NOT NULL, model TEXT NOT NULL, idempotency_key TEXT NOT NULL,"
        " kind TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, finished_at REAL, result TEXT, error TEXT,"
        " target_step INTEGER, UNIQUE (project, model, idempotency_key))"
    )
    database.execute("INSERT INTO jobs VALUES ('j', 'p', 'm', 'old', 'train', 'succeeded', 0, 0, NULL, NULL, 1)")
    for _ in range(2):
        runs = RunStore(database)
    assert runs.create_job("p", "m", "old", digest="any") == (runs.job("j"), False), "what it was is not known"
    assert runs.create_job("p", "m", "new", digest="one")[1]
    with pytest.raises(ConflictError):
        runs.create_job("p", "m", "new", digest="two")


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
