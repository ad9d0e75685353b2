"""One rule for all fields of all protocols: honoured, or a 400 by name; what cannot change the answer is accepted."""

import json

import openai
import pytest
from tests.art_backend.gateway.conftest import start_gateway
from tests.art_backend.gateway.test_bad_input import PROTOCOLS, post
from tests.support.tiny import build_tiny_tokenizer

from art_backend.gateway.dialects.requests import REFUSED

CHANGING = {
    "add_generation_prompt": False, "continue_final_message": True, "add_special_tokens": True, "allowed_token_ids": [5], "audio": {"voice": "x", "format": "wav"}, "background": True,
    "bad_words": ["no"], "chat_template": "{{ messages }}", "chat_template_kwargs": {"x": 1}, "conversation": "conv_1", "documents": [{"text": "x"}], "echo": True,
    "function_call": {"name": "f"}, "functions": [{"name": "f"}], "guided_whitespace_pattern": " ",
    "include_reasoning": False, "include_stop_str_in_output": True, "length_penalty": 0.5, "logit_bias": {"5": 3},
    "logits_processors": ["x"], "logprobs": True, "max_completion_tokens": 5, "max_output_tokens": 5, "max_tokens": 5,
    "min_tokens": 5, "mm_processor_kwargs": {"x": 1}, "modalities": ["text", "audio"], "n": 2, "output_config": {"format": {}},
    "output_format": {"type": "json_schema"}, "prompt": {"id": "x"}, "prompt_logprobs": 0, "repetition_detection": {"x": 1},
    "response_format": {"type": "json_object"}, "return_token_ids": True, "return_tokens_as_token_ids": True,
    "skip_special_tokens": False, "spaces_between_special_tokens": False, "stop": ["x"], "suffix": "x",
    "thinking_token_budget": 5, "top_logprobs": 2, "truncate_prompt_tokens": 5, "use_beam_search": True, "vllm_xargs": {"x": 1},
    "web_search_options": {},
}  # fmt: skip
"""A value of each field that would change the answer."""
NEUTRAL = {
    "add_generation_prompt": True,
    "function_call": "none", "include_reasoning": True, "length_penalty": 1.0, "min_tokens": 0, "modalities": ["text"], "n": 1,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "logit_bias": {}, "echo": False, "suffix": "",
}  # fmt: skip
ACCEPTED = {
    "access_programs": [], "background_options": {}, "betas": ["x"], "billing_policy": "x", "cache_control": {"type": "ephemeral"},
    "cache_salt": "x", "container": "c", "context_management": {"edits": []}, "diagnostics": {}, "fallbacks": [],
    "guided_decoding_backend": "x", "image": {}, "inference_geo": "eu", "kv_transfer_params": {}, "max_tool_calls": 3, "mcp_servers": [],
    "metadata": {"a": "b"}, "moderation": {}, "prediction": {"type": "content", "content": "x"}, "priority": 1,
    "prompt_cache_key": "x", "prompt_cache_retention": "24h", "reasoning": {"effort": "low"}, "reasoning_effort": "low",
    "request_id": "x", "safety_identifier": "x", "service_tier": "auto", "speed": "fast", "store": False,
    "thinking": {"type": "disabled"}, "truncation": "auto", "user": "me", "verbosity": "low",
}  # fmt: skip


def honoured(path):
    return PROTOCOLS[path][0].model_fields


def body_of(path, **fields):
    return {"model": "m", **PROTOCOLS[path][1], **fields}


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_what_would_change_the_answer_is_refused_by_name(gateway, path):
    assert CHANGING.keys() == REFUSED.keys()
    info = gateway.rollout()
    for name in CHANGING.keys() - honoured(path):
        answer = await post(gateway, info, body_of(path, **{name: CHANGING[name]}), f"/v1/{path}")
        assert answer.status_code == 400, name
        error = answer.json()["error"]
        assert error["message"].startswith(f"{name}: is not supported here; "), error
        assert error.get("param", name) == name
    assert gateway.engine.calls == []


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_neutral_values_and_what_bears_on_nothing_are_accepted(gateway, path):
    info = gateway.rollout()
    silent = {name: NEUTRAL.get(name) for name in CHANGING.keys() - honoured(path)}
    others = {name: value for name, value in ACCEPTED.items() if name not in honoured(path)}
    for fields in (silent, others, {"unknown": [1]}):
        answer = await post(gateway, info, body_of(path, **fields), f"/v1/{path}")
        assert answer.status_code == 200, answer.text
    assert len({tuple(call.fed) for call in gateway.engine.calls}) == 1


SAMPLING = {
    "top_k": 5, "min_p": 0.25, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_sampling_fields_are_honoured_in_every_protocol(gateway, path):
    info = gateway.rollout()
    for name, value in SAMPLING.items():
        assert (await post(gateway, info, body_of(path, **{name: value}), f"/v1/{path}")).status_code == 200
        assert gateway.engine.calls[-1].params[name] == value
        wrong = (await post(gateway, info, body_of(path, **{name: "x"}), f"/v1/{path}")).json()["error"]
        assert wrong["message"].startswith(f"{name}: ")
    assert [name for turn in gateway.turns(info.id) for name in SAMPLING if name in turn.sampling] == list(SAMPLING)


GUIDED = [
    ("guided_json", {"type": "object"}, "json"),
    ("guided_json", '{"type": "object"}', "json"),
    ("guided_regex", "[ab]+", "regex"),
    ("guided_choice", ["a", "b"], "choice"),
    ("guided_grammar", 'start: "a"', "grammar"),
    ("structured_outputs", {"choice": ["a"]}, "choice"),
]


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize(("name", "value", "kind"), GUIDED)
async def test_forms_in_vllms_words_are_enforced_in_every_protocol(quiet_gateway, path, name, value, kind):
    gateway = quiet_gateway  # a sign of life while a form is compiled would leave no room for an error
    info = gateway.rollout()
    answer = await post(gateway, info, body_of(path, **{name: value}), f"/v1/{path}")
    assert answer.status_code == 200, answer.text
    assert list(gateway.engine.calls[-1].params["structured_outputs"]) == [kind]
    for wrong in (3, "{"):
        refused = await post(gateway, info, body_of(path, **{name: wrong}), f"/v1/{path}")
        assert refused.status_code == 400 or (name, wrong) == ("guided_regex", "{")
        assert refused.status_code == 200 or refused.json()["error"]["message"].startswith(name)


async def test_one_form_a_request(gateway):
    info = gateway.rollout()
    two = [
        {"guided_regex": "a", "guided_choice": ["a"]},
        {"guided_regex": "a", "structured_outputs": {"choice": ["a"]}},
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
    ]
    for fields in two:
        answer = await post(gateway, info, body_of("chat/completions", **fields))
        assert "cannot be combined" in answer.json()["error"]["message"]
    both = {"guided_regex": "a", "response_format": {"type": "text"}}
    assert (await post(gateway, info, body_of("chat/completions", **both))).status_code == 200


async def test_completions_know_response_format(gateway):
    client, _ = gateway.new_client()
    await client.completions.create(model="m", prompt="x", extra_body={"response_format": {"type": "json_object"}})
    assert "json" in gateway.engine.calls[-1].params["structured_outputs"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [None, ["zz"]])
async def test_ids_that_end_an_answer_are_sampled_and_not_shown(gateway, stream, stop):
    """The next turn extends the exact ids, with what was not shown among them."""
    client, rollout = gateway.new_client()
    (end,) = gateway.renderer.encode("!")
    own = gateway.renderer.stop_token_ids
    sampled = [*gateway.renderer.encode("ab"), end]
    gateway.engine.choose = lambda call: sampled
    messages = [{"role": "user", "content": "Go"}]
    options = {"model": "m", "stop": stop, "extra_body": {"stop_token_ids": [end]}}
    answer = await client.chat.completions.create(messages=messages, stream=stream, **options)
    if stream:
        chunks = [chunk.choices[0] async for chunk in answer]
        said, reason = "".join(choice.delta.content or "" for choice in chunks), chunks[-1].finish_reason
    else:
        said, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (said, reason) == ("ab", "stop")
    assert gateway.engine.calls[-1].params["stop_token_ids"] == [*own, end]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
    await client.chat.completions.create(messages=messages, **options)
    (row,) = gateway.captures.rows(rollout).rows
    assert [row.token_ids[i] for i, sampled in enumerate(row.sampled) if sampled].count(end) == 2
    gateway.check(rollout)


async def test_an_answer_may_go_on_beyond_its_end(gateway):
    client, rollout = gateway.new_client()
    await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Go"}], max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert gateway.engine.calls[-1].params["stop_token_ids"] == []
    assert gateway.turns(rollout)[0].sampling["stop_token_ids"] == []
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Go"}],
            response_format={"type": "json_object"},
            extra_body={"ignore_eos": True},
        )
    assert caught.value.param == "ignore_eos"


async def test_calls_in_the_older_form_are_read_from_histories(gateway):
    client, _ = gateway.new_client()
    call = {"name": "f", "arguments": json.dumps({"city": "Bern"})}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "sunny"},
    ]
    await client.chat.completions.create(model="m", messages=messages)
    told = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert told.index("Bern") < told.index("sunny")


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_template_arguments_reach_the_template_and_are_another_conversation(tmp_path, path):
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = "{% if mood %}Be {{ mood }}.{% endif %}" + tokenizer.chat_template
    async with start_gateway(tmp_path, tokenizer) as gateway:
        info = gateway.rollout()
        for mood in ("calm", "bold", "calm"):
            body = body_of(path, chat_template_kwargs={"mood": mood})
            assert (await post(gateway, info, body, f"/v1/{path}")).status_code == 200
            assert gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed).startswith(f"Be {mood}.")
        assert len(gateway.captures.tree(info.id).prompts) == 2
        wrong = await post(gateway, info, body_of(path, chat_template_kwargs={"nonsense": 1}), f"/v1/{path}")
        assert wrong.status_code == 400 and "nonsense" in wrong.json()["error"]["message"]
        gateway.check(info.id)
