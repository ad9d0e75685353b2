"""What a run keeps on disk, and how it is taken up again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from art.demo.records import Results, RunConfig, RunDirectory
from art.errors import ARTError


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(
        seed=1, groups=8, group_size=16, learning_rate=3e-4, episodes=200, base_model="base", model_name="name-1"
    )


def test_a_run_is_taken_up_under_its_first_model_name(tmp_path: Path, config: RunConfig) -> None:
    directory = RunDirectory(tmp_path / "run")
    assert directory.open(config) == config
    again = directory.open(config.model_copy(update={"model_name": "name-2"}))
    assert again.model_name == "name-1"


def test_a_run_is_not_taken_up_with_other_settings(tmp_path: Path, config: RunConfig) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open(config)
    with pytest.raises(ARTError, match="groups is 8 there, not 4") as failure:
        directory.open(config.model_copy(update={"groups": 4}))
    assert "--fresh" in str(failure.value)


def test_an_unreadable_file_is_named(tmp_path: Path, config: RunConfig) -> None:
    (tmp_path / "run.json").write_text('{"seed": 1')
    with pytest.raises(ARTError, match=r"run\.json cannot be read"):
        RunDirectory(tmp_path).open(config)


def test_setting_aside_keeps_everything(tmp_path: Path, config: RunConfig) -> None:
    directory = RunDirectory(tmp_path / "run")
    assert directory.set_aside() is None
    directory.open(config)
    old = directory.set_aside()
    assert old is not None
    assert (old / "run.json").exists()
    assert not directory.path.exists()


def test_everything_reads_back_as_it_was_written(tmp_path: Path, make_results: Callable[..., Results]) -> None:
    directory, results = RunDirectory(tmp_path), make_results()
    assert directory.read_results() is None
    assert directory.read_evaluation("before") is None
    assert directory.read_spent() == (0.0, 0)
    directory.write_results(results)
    directory.write_evaluation("before", results.before)
    directory.write_spent(12.5, 7)
    assert directory.read_results() == results
    assert directory.read_evaluation("before") == results.before
    assert directory.read_spent() == (12.5, 7)
    assert not list(tmp_path.glob(".*.partial"))


def test_step_records_survive_a_line_that_was_cut_off(tmp_path: Path, make_results: Callable[..., Results]) -> None:
    directory, (first, second, third) = RunDirectory(tmp_path), make_results().steps
    directory.append_step(first)
    log = tmp_path / "steps.jsonl"
    log.write_text(log.read_text() + second.model_dump_json()[:50])  # killed in mid-write
    assert directory.read_steps(3) == [first]
    repeated = second.model_copy(update={"gather_s": 99.0})
    for record in (second, third, repeated):
        directory.append_step(record)
    assert directory.read_steps(3) == [first, repeated, third]


def test_steps_that_the_backend_does_not_know_do_not_count(
    tmp_path: Path, make_results: Callable[..., Results]
) -> None:
    directory, records = RunDirectory(tmp_path), make_results().steps
    for record in records:
        directory.append_step(record)
    assert directory.read_steps(2) == records[:2]
