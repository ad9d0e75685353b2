import json
import typing

import pytest

import art
from art.dev import get_openai_server_config, is_dedicated_mode, validate_dedicated_config
from art.model_spec import build_registration


def test_a_server_of_the_base_model():
    made = get_openai_server_config("m", "base", "log.txt")
    assert made["log_file"] == "log.txt"
    assert made["engine_args"] == {"model": "base", "served_model_name": "m", "generation_config": "vllm"}
    assert made["server_args"] == {
        "api_key": "default",
        "return_tokens_as_token_ids": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
    }


def test_a_server_of_an_adapter_and_the_settings_of_a_user():
    config = {
        "server_args": {"api_key": "own", "port": 1},
        "engine_args": {"generation_config": "auto", "max_model_len": 9},
    }
    made = get_openai_server_config("m", "base", "log.txt", lora_path="/x/checkpoints/0012", config=config)
    (module,) = made["server_args"]["lora_modules"]
    assert json.loads(module) == {"name": "m@12", "path": "/x/checkpoints/0012"}
    assert (made["server_args"]["api_key"], made["server_args"]["port"]) == ("own", 1)
    engine = made["engine_args"]
    assert (engine["served_model_name"], engine["generation_config"], engine["max_model_len"]) == ("base", "auto", 9)


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
        ({"init_args": {"fast_inference": True}}, "fast_inference"),
        ({"engine_args": {"enable_sleep_mode": True}}, "enable_sleep_mode"),
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
    assert len(settings) >= 11
    assert [value.__name__ for value in settings if value.__required_keys__] == []
