"""Weights on their way in and out of the whole product: export, and models that begin as others."""

import asyncio

import openai
import psutil
import pytest
import torch
from tests.support.waiting import until_held
from transformers import AutoModelForCausalLM, AutoTokenizer

import art
from art.errors import BackendError, ConflictError, ModelNotAvailableError
from art_backend.models.export import export_model
from art_backend.settings import Settings

pytestmark = pytest.mark.long

BF16_NATS = 0.25
"""How far rounding to bfloat16, as the engine does it, may move a log-probability of the random model."""

QUESTION = {"role": "user", "content": "Which word?"}


def make_model(tiny_model_path, name, **config):
    return art.TrainableModel(
        name=name, project="test", base_model=str(tiny_model_path), _internal_config={"init_args": {}, **config}
    )


def lesson(answer):
    return art.Trajectory(messages_and_choices=[QUESTION, {"role": "assistant", "content": answer}])


async def ask(model):
    """The log-probability of each token of the greedy answer."""
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[QUESTION], max_tokens=6, temperature=0, logprobs=True
    )
    content = answer.choices[0].logprobs.content
    return [token.logprob for token in content]


def ask_plainly(directory):
    """The same of an exported folder, in plain transformers."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    text = tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        said = model.generate(
            ids, max_new_tokens=6, do_sample=False, output_scores=True, return_dict_in_generate=True, eos_token_id=-1
        )
    return [torch.log_softmax(scores[0].float(), -1).max().item() for scores in said.scores]


async def test_forks_and_exports_answer_like_what_was_trained(tmp_path, tiny_model_path):
    path = tmp_path / "art"
    async with art.LocalBackend(path=str(path)) as backend:
        parent, child = make_model(tiny_model_path, "parent"), make_model(tiny_model_path, "child")
        await parent.register(backend)
        await parent.train_sft([lesson("yes")] * 20, art.TrainSFTConfig(learning_rate=3e-3))
        answer = await ask(parent)

        await child.register(backend)
        assert await child.get_step() == 0
        assert await ask(child) != pytest.approx(answer, abs=BF16_NATS)
        for _ in range(2):  # again is harmless
            await backend._experimental_fork_checkpoint(child, "parent")
        assert (await child.get_step(), child.get_inference_name()) == (1, "child@1")
        assert await ask(child) == pytest.approx(answer, abs=1e-4)

        await child.train_sft([lesson("no")] * 20, art.TrainSFTConfig(learning_rate=3e-3))
        assert await child.get_step() == 2
        assert await ask(parent) == pytest.approx(answer, abs=1e-4), "the parent is as it was"
        with pytest.raises(ConflictError, match="has checkpoints already"):
            await backend._experimental_fork_checkpoint(parent, "child")
        with pytest.raises(ModelNotAvailableError, match="has rank 16"):
            await make_model(
                tiny_model_path, "thin", init_adapter="test/parent@1", peft_args={"r": 2, "lora_alpha": 4}
            ).register(backend)

        for merged in (True, False):  # while the service runs
            target = tmp_path / f"out-{merged}"
            export_model(Settings(path=path), "test/parent", target, merged=merged)
            assert ask_plainly(target) == pytest.approx(answer, abs=BF16_NATS)


async def test_a_fully_fine_tuned_model_is_served_as_it_was_trained_and_survives_kill_9(tmp_path, tiny_model_path):
    path = tmp_path / "art"
    backend = art.LocalBackend(path=str(path))
    model = make_model(tiny_model_path, "whole", init_args={"full_finetuning": True})
    await model.register(backend)
    base = await ask(model)
    words = asyncio.ensure_future(talk(model))  # completions are in flight while weights change
    for _ in range(2):
        await model.train_sft([lesson("yes")] * 10, art.TrainSFTConfig(learning_rate=1e-3))
    versions = await words
    assert versions == sorted(versions)
    answer = await ask(model)
    assert answer != pytest.approx(base, abs=BF16_NATS)
    checkpoint = path / "test/models/whole/checkpoints/0002"
    assert ask_plainly(checkpoint) == pytest.approx(answer, abs=BF16_NATS)
    client = model.openai_client()
    with pytest.raises(openai.NotFoundError, match="of its versions only the latest, 2, is served, not 1"):
        await client.chat.completions.create(model="whole@1", messages=[QUESTION], max_tokens=1)

    health = await backend.get_health()
    psutil.Process(next(p.pid for p in health.processes if p.name.startswith("engine"))).kill()
    assert await ask(model) == pytest.approx(answer, abs=1e-4), "a new engine serves the same version"
    health = await backend.get_health()
    service = psutil.Process(health.processes[0].pid).parent()
    training = asyncio.ensure_future(model.train_sft([lesson("no")] * 400))
    await until_held(backend, training)
    service.kill()
    with pytest.raises(BackendError):
        await training
    await backend.close()

    async with art.LocalBackend(path=str(path)) as again:
        model = make_model(tiny_model_path, "whole", init_args={"full_finetuning": True})
        await model.register(again)
        assert await model.get_step() == 2
        assert await ask(model) == pytest.approx(answer, abs=1e-4)
        with pytest.raises(ConflictError, match="full_finetune"):
            await make_model(tiny_model_path, "whole").register(again)
    export_model(Settings(path=path), "whole", tmp_path / "out")
    assert ask_plainly(tmp_path / "out") == pytest.approx(answer, abs=BF16_NATS)


async def talk(model, calls=40):
    """Policy versions of completions, one after the other."""
    versions = []
    for _ in range(calls):
        answer = await model.openai_client().chat.completions.create(
            model="whole", messages=[QUESTION], max_tokens=20, temperature=1.0
        )
        versions.append(answer.choices[0].model_extra["art"]["policy_version"])
    return versions
