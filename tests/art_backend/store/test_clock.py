"""Retention by a clock that does not jump."""

import time
from types import SimpleNamespace

import pytest

from art_backend.errors import NotFoundError
from art_backend.store.captures import CaptureStore
from art_backend.store.database import LONGEST_PAUSE_S, SteadyClock, open_database

MONTH_S = 31 * 86_400.0
KEPT_S = 30 * 86_400.0


@pytest.fixture
def shift(monkeypatch):
    """Moves the system's clock, for the store alone."""
    off = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + off[0], monotonic=time.monotonic)
    for module in ("captures", "database"):
        monkeypatch.setattr(f"art_backend.store.{module}.time", clock)

    def shift(seconds):
        off[0] += seconds

    return shift


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("jump_s", [MONTH_S, -MONTH_S, 50 * 12 * MONTH_S])
def test_a_jump_of_the_clock_deletes_nothing(tmp_path, shift, jump_s, restarts):
    path = tmp_path / "art.db"
    store = CaptureStore(open_database(path))
    before = store.create_rollout("p", "m").id
    shift(jump_s)
    if restarts:
        store = CaptureStore(open_database(path))
    after = store.create_rollout("p", "m").id
    assert store.delete_unused(KEPT_S) == 0
    shift(-jump_s)
    assert store.delete_unused(KEPT_S) == 0
    if restarts:
        store = CaptureStore(open_database(path))
        assert store.delete_unused(KEPT_S) == 0
    assert [store.get(rollout).id for rollout in (before, after)] == [before, after]


def test_time_goes_on_while_the_service_runs_and_while_it_is_stopped(tmp_path, shift, monkeypatch):
    path = tmp_path / "art.db"
    store = CaptureStore(open_database(path))
    old = store.create_rollout("p", "m").id
    for day in range(31):
        assert store.delete_unused(KEPT_S) == 0, day
        shift(0.99 * LONGEST_PAUSE_S)  # it is off, over night
        store = CaptureStore(open_database(path))
    assert store.delete_unused(KEPT_S) == 1
    with pytest.raises(NotFoundError):
        store.get(old)
    young = store.create_rollout("p", "m").id
    later = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + KEPT_S + 1)
    monkeypatch.setattr("art_backend.store.database.time", later)
    assert store.delete_unused(KEPT_S) == 1
    with pytest.raises(NotFoundError):
        store.get(young)


def test_it_begins_as_the_systems_clock(tmp_path):
    assert SteadyClock(open_database(tmp_path / "art.db")).now() == pytest.approx(time.time(), abs=60)
