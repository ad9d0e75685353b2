import json
import math

import pytest

import art
from art.utils.sft import (
    create_lr_schedule,
    create_sft_dataset_iterator,
    get_file_row_count,
    iterate_file,
    train_sft_from_file,
)


def test_schedules():
    assert create_lr_schedule(0, 1.0) == []
    assert create_lr_schedule(4, 1.0, "constant", warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]
    assert create_lr_schedule(5, 1.0, "linear", warmup_steps=2) == [0.5, 1.0, 1.0, 0.5, 0.0]
    assert create_lr_schedule(3, 1.0, "linear", min_lr=0.2) == pytest.approx([1.0, 0.6, 0.2])
    assert create_lr_schedule(3, 1.0, "cosine") == pytest.approx([1.0, 0.5 * (1 + math.cos(math.pi / 2)), 0.0])
    assert create_lr_schedule(2, 1.0, "linear", warmup_steps=4) == [0.25, 0.5]
    assert create_lr_schedule(1, 1.0, "cosine") == [1.0]
    with pytest.raises(ValueError, match="'square'"):
        create_lr_schedule(1, 1.0, "square")


def rows(n):
    return [art.Trajectory(reward=i) for i in range(n)]


def test_chunks_cover_every_epoch_and_the_whole_schedule():
    options = {
        "chunk_size": 2,
        "epochs": 2,
        "batch_size": 2,
        "peak_lr": 1.0,
        "warmup_ratio": 0.25,
        "show_progress": False,
    }
    chunks = list(create_sft_dataset_iterator(rows(9), **options))
    assert [(c.step, c.epoch, c.epoch_step, len(c.trajectories)) for c in chunks] == [
        (0, 0, 0, 4),
        (2, 0, 2, 4),
        (4, 0, 4, 1),
        (5, 1, 0, 4),
        (7, 1, 2, 4),
        (9, 1, 4, 1),
    ]
    assert [rate for c in chunks for rate in c.config.learning_rate] == create_lr_schedule(10, 1.0, "linear", 2)
    for epoch in range(2):
        seen = [t.reward for c in chunks if c.epoch == epoch for t in c.trajectories]
        assert sorted(seen) == list(range(9))
        assert seen != list(range(9))
    for done in (0, 1, 2, 3, 4, 5, 9, 10):
        resumed = list(create_sft_dataset_iterator(rows(9), initial_step=done, **options))
        assert [c.step for c in resumed] == [c.step for c in chunks if c.step + len(c.config.learning_rate) > done]
    assert list(create_sft_dataset_iterator([], show_progress=False)) == []
    with pytest.raises(ValueError, match="chunk_size"):
        next(create_sft_dataset_iterator(rows(1), chunk_size=0))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.jsonl"
    lines = [
        json.dumps({"messages": [{"role": "user", "content": str(i)}], **({"tools": []} if i == 0 else {})})
        for i in range(7)
    ]
    path.write_text("\n\n".join(lines) + "\n")
    return path


def contents(trajectories):
    return [t.messages_and_choices[0]["content"] for t in trajectories]


@pytest.mark.parametrize("buffer", [0, 1, 3, 100])
def test_files_stream_every_row_once_per_epoch_and_alike_in_every_run(file, buffer):
    assert get_file_row_count(file) == 7
    first = contents(iterate_file(file, epochs=2, shuffle_buffer_size=buffer))
    assert sorted(first[:7]) == sorted(first[7:]) == [str(i) for i in range(7)]
    assert contents(iterate_file(file, epochs=2, shuffle_buffer_size=buffer)) == first
    assert contents(iterate_file(file, epochs=2, shuffle_buffer_size=buffer, initial_skip=9)) == first[9:]


def test_bad_files_are_named(tmp_path, file):
    with pytest.raises(ValueError, match=r"must be a \.jsonl file"):
        iterate_file(tmp_path / "data.txt")
    file.write_text('{"messages": []}\n{"mesages": []}\n')
    with pytest.raises(ValueError, match=r"data\.jsonl:2 is not"):
        list(iterate_file(file))


async def test_a_file_may_be_trained_in_parts(file):
    calls = []

    class Model:
        async def train_sft(self, trajectories, config, dev_config, verbose):
            calls.append((contents(trajectories), config.learning_rate))

    await train_sft_from_file(Model(), file, epochs=2, peak_lr=1.0)
    await train_sft_from_file(Model(), file, epochs=2, peak_lr=1.0, final_step=3)
    await train_sft_from_file(Model(), file, epochs=2, peak_lr=1.0, initial_step=3)
    await train_sft_from_file(Model(), file, epochs=2, peak_lr=1.0, initial_step=7)
    whole, *parts = calls
    assert len(parts) == 2
    assert whole == (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
    assert len(whole[1]) == 7
