import typing

import pytest

import art
from art.backend.registration import build_registration
from art.dev import is_dedicated_mode, validate_dedicated_config

APART = {"trainer_gpu_ids": [0, 1], "inference_gpu_ids": [2]}


def test_devices_of_their_own():
    assert is_dedicated_mode(APART)
    assert not is_dedicated_mode({})
    validate_dedicated_config(APART)
    validate_dedicated_config({})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"inference_gpu_ids": None}, "inference_gpu_ids is missing"),
        ({"trainer_gpu_ids": None}, "trainer_gpu_ids is missing"),
        ({"trainer_gpu_ids": []}, "trainer_gpu_ids must not be empty"),
        ({"inference_gpu_ids": []}, "inference_gpu_ids must not be empty"),
        ({"inference_gpu_ids": [1]}, "must not share devices"),
        ({"inference_gpu_ids": [2, 3]}, "one device"),
        ({"trainer_gpu_ids": [1]}, "exactly 0 to n-1"),
    ],
)
def test_what_cannot_be_is_named_when_the_model_is_registered_and_not_before(change, named):
    config = {name: value for name, value in {**APART, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=named):
        validate_dedicated_config(config)
    model = art.TrainableModel(name="m", project="p", base_model="b", _internal_config=config)
    with pytest.raises(ValueError, match=named):
        build_registration(model)


def test_a_model_takes_settings_in_part():
    model = art.TrainableModel(name="m", project="p", base_model="b", _internal_config={"trainer_gpu_ids": [0]})
    assert model._internal_config == {"trainer_gpu_ids": [0]}


def test_every_setting_may_be_left_out():
    settings = [value for value in vars(art.dev).values() if typing.is_typeddict(value)]
    assert len(settings) >= 5
    assert [value.__name__ for value in settings if value.__required_keys__] == []
