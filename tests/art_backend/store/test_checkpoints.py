"""A checkpoint appears whole or not at all, is never overwritten, and damage is noticed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from art_backend.errors import ConflictError, NotFoundError, StorageFailedError
from art_backend.store.checkpoints import CheckpointStore


def writer(**files):
    def write(directory):
        for name, content in files.items():
            (directory / name).write_text(content)

    return write


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run" / "checkpoints")


def test_without_a_checkpoint_the_latest_step_is_the_base_model(store):
    assert (store.steps(), store.latest_step()) == ([], 0)
    with pytest.raises(NotFoundError, match="no checkpoint of step 3"):
        store.describe(3)


def test_save_list_describe(store):
    before = time.time()
    for step in (2, 10, 12345):
        assert store.save(step, writer(a="xyz", b="")) == store.directory / f"{step:04d}"
    assert store.steps() == [2, 10, 12345]
    assert store.latest_step() == 12345
    found = store.describe(10)
    assert found.path == str(store.directory / "0010")
    assert found.created_at >= before - 1
    assert found.size_bytes == 3 + (store.path(10) / "manifest.json").stat().st_size
    assert store.verify(10) == store.path(10)


def test_a_published_step_is_never_written_again(store):
    store.save(1, writer(a="first"))
    with pytest.raises(ConflictError, match="never overwritten"):
        store.save(1, writer(a="second"))

    def lose_the_race(directory):
        (directory / "a").write_text("slow")
        store.save(2, writer(a="fast"))

    with pytest.raises(ConflictError, match="Step 2"):
        store.save(2, lose_the_race)
    assert [(store.path(s) / "a").read_text() for s in store.steps()] == ["first", "fast"]
    assert sorted(p.name for p in store.directory.iterdir()) == ["0001", "0002"]


def test_a_full_disk_leaves_the_last_checkpoint_whole_and_nothing_else(store):
    store.save(1, writer(a="x"))

    def fill_the_disk(directory):
        (directory / "a").write_text("half")
        with Path("/dev/full").open("w") as full:
            full.write("x" * 10_000)

    with pytest.raises(StorageFailedError, match=r"No space left on device.*Free space"):
        store.save(2, fill_the_disk)
    assert [p.name for p in store.directory.iterdir()] == ["0001"]
    assert store.verify(1)
    store.save(2, writer(a="y"))
    assert store.steps() == [1, 2]


def test_a_failing_writer_leaves_nothing(store):
    with pytest.raises(ZeroDivisionError):
        store.save(1, lambda directory: (directory / "a").write_text(str(1 / 0)))
    assert list(store.directory.iterdir()) == []


def test_link_shares_files_and_replaces_some(store):
    store.save(1, writer(weights="w" * 1000, state="1"))

    def write(directory):
        (directory / "state").unlink()
        (directory / "state").write_text("2")

    store.link(1, 2, write)
    first, second = store.verify(1), store.verify(2)
    assert (first / "weights").stat().st_ino == (second / "weights").stat().st_ino
    assert [(d / "state").read_text() for d in (first, second)] == ["1", "2"]
    store.prune([2])
    assert (second / "weights").read_text() == "w" * 1000


@pytest.mark.parametrize("damage", ["shortened", "flipped", "missing", "manifest"])
def test_damage_is_reported_with_what_to_do(store, damage):
    store.save(1, writer(a="good"))
    store.save(2, writer(a="abcd", b="1"))
    file = store.path(2) / "a"
    match damage:
        case "shortened":
            file.write_text("abc")
        case "flipped":
            file.write_text("abce")
        case "missing":
            file.unlink()
        case _:
            (store.path(2) / "manifest.json").write_text("{")
    with pytest.raises(StorageFailedError) as caught:
        store.verify(2)
    assert "step 2 is damaged" in caught.value.message
    assert "to continue from step 1" in caught.value.message
    assert store.verify(1)


def test_prune_keeps_the_latest(store):
    for step in (1, 2, 3, 4):
        store.save(step, writer(a="x"))
    assert store.prune([2]) == [1, 3]
    assert store.steps() == [2, 4]
    assert store.prune([]) == [2]
    assert store.steps() == [4]


SLOW_WRITER = """
import sys, time
from pathlib import Path
from art_backend.store.checkpoints import CheckpointStore
def write(directory):
    (directory / "half").write_text("x")
    print("writing", flush=True)
    time.sleep(60)
CheckpointStore(Path(sys.argv[1])).save(1, write)
"""


def test_kill_9_while_saving_leaves_a_leftover_that_is_cleaned(store):
    child = subprocess.Popen([sys.executable, "-c", SLOW_WRITER, str(store.directory)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    assert store.steps() == []
    assert store.clean() == 0  # its writer lives
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert len(list(store.directory.iterdir())) == 1
    assert store.clean() == 1
    assert list(store.directory.iterdir()) == []
