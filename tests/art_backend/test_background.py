"""Work beside the requests goes on."""

import asyncio

import pytest
from tests.support.waiting import until

from art_backend.jobs import Background


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a bug")])
async def test_what_repeats_goes_on_after_a_failure(error, caplog):
    background, turns = Background(), []

    async def work():
        turns.append("work")
        if len(turns) < 3:
            raise error

    background.repeat(work, every_s=0.01, what="Sweeping")
    await until(lambda: len(turns) > 4)
    assert caplog.text.count("Sweeping failed; trying again in 0.01 s") == 2
    await background.close()
    done = len(turns)
    await asyncio.sleep(0.05)
    assert len(turns) == done


async def test_what_fails_once_is_logged(caplog):
    background = Background()

    async def work():
        raise RuntimeError("a bug")

    background.start(work, what="Tidying")
    await until(lambda: "Tidying failed" in caplog.text)
    assert "a bug" in caplog.text
    await background.close()
