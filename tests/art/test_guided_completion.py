import pytest

from art.guided_completion import get_guided_completion_params as guide


def call(name, arguments="{}"):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_text_is_the_only_choice(make_choice):
    expected = {"extra_body": {"structured_outputs": {"choice": ["yes"]}}}
    assert guide("yes") == guide(make_choice("yes")) == guide({"role": "assistant", "content": "yes"}) == expected


def test_a_call_leaves_its_tool_one_set_of_arguments(make_choice):
    others = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]
    made = guide(make_choice(content=None, message={"tool_calls": [call("f", '{"a": [1], "b": {"c": null}}')]}), others)
    assert made["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    kept, forced = made["tools"]
    assert (kept, forced["function"]["name"], forced["function"]["strict"]) == (others[1], "f", True)
    assert forced["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "a": {"const": [1]},
            "b": {
                "type": "object",
                "properties": {"c": {"const": None}},
                "required": ["c"],
                "additionalProperties": False,
            },
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "completion",
    [
        "",
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "and", "tool_calls": [call("f")]},
        {"role": "assistant", "content": None, "tool_calls": [call("f"), call("g")]},
    ],
)
def test_what_cannot_be_guided_to_is_refused(completion):
    with pytest.raises(ValueError, match="completion: "):
        guide(completion)
