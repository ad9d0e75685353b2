"""Weights on their way in and out of the whole product: export, and models that begin as others."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import art
from art.errors import ConflictError, ModelNotAvailableError
from art_backend.export import export_model
from art_backend.settings import Settings

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
