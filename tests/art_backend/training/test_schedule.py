"""Learning rates of a run, by hand."""

import pytest
from pydantic import ValidationError

from art.wire import TrainOptions
from art_backend.errors import BadRequestError
from art_backend.training.optimizers import learning_rate


def rates(steps, **options):
    chosen = TrainOptions(learning_rate=1.0, **options)
    return [learning_rate(chosen, step) for step in range(1, steps + 1)]


def test_constant_after_a_warm_up_goes_on_for_ever():
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_from_the_full_rate_and_never_waste_a_step():
    assert rates(4, schedule="linear", total_steps=4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(4, schedule="linear", total_steps=4, warmup_steps=2) == [0.5, 1.0, 1.0, 0.5]
    half = 2**-0.5 / 2
    assert rates(4, schedule="cosine", total_steps=4) == pytest.approx([1.0, 0.5 + half, 0.5, 0.5 - half])
    assert rates(2, schedule="cosine", total_steps=2, warmup_steps=2) == [0.5, 1.0]


def test_a_step_after_the_end_is_an_error_and_not_a_rate_of_zero():
    with pytest.raises(BadRequestError, match=r"Step 5 is past the end .*total_steps=4") as caught:
        rates(5, schedule="linear", total_steps=4)
    assert caught.value.param == "options.total_steps"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"schedule": "cosine"}, "needs total_steps"), ({"warmup_steps": 3, "total_steps": 2}, "more than total_steps")],
)
def test_a_schedule_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        TrainOptions(**options)
