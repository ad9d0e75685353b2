"""A tiny model learns a made-up preference from real training, in its own process."""

import asyncio
import json
import math
import os
import random
import signal

import pytest

import art
from art.errors import BackendDiedError, BadRequestError
from art.rewards import PreferencePair, RewardModel
from art.rewards.worker import RewardWorker
from art.wire.rewards import LoadReward, RewardReady, TrainReward


def talk(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def make_pairs(count, seed=0):
    """Polite answers are better; the words around vary."""
    draw = random.Random(seed)
    for i in range(count):
        words = draw.choice(["it is", "you get", "that gives"])
        question = f"{draw.randrange(10)} + {draw.randrange(10)}?"
        polite, rude = f"please: {words} {i % 9}", f"whatever, {words} {i % 9}"
        yield {"chosen": talk(question, polite), "rejected": talk(question, rude), "group": str(i)}


CONVERSATIONS = [pair[side] for pair in make_pairs(12, seed=9) for side in ("chosen", "rejected")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model_path):
    """A copy of a model that was trained on pairs, its report, and the scores that the original gave."""
    path = tmp_path_factory.mktemp("reward") / "polite"

    async def train():
        options = {"learning_rate": 2e-3, "epochs": 2, "batch_size": 8, "max_length": 128, "held_out": 0.4}
        overlong = {"chosen": talk("?", "long " * 60), "rejected": talk("?", "short"), "group": "long"}
        pairs = [*make_pairs(100), overlong]
        async with await RewardModel.train(str(tiny_model_path), path, pairs=pairs, **options) as model:
            return model.save(path.with_name("copy")), model.report, await model.score(CONVERSATIONS)

    return asyncio.run(train())


def test_it_learns_the_preference_and_reports_on_pairs_it_never_saw(trained):
    _, report, scores = trained
    assert sum(a > b for a, b in zip(scores[::2], scores[1::2], strict=True)) >= 11
    assert report.overlong_pairs == 1
    assert report.trained_pairs + report.calibration_pairs + report.held_out_pairs == 100
    assert report.held_out_pairs >= 15
    assert report.accuracy >= 0.9
    assert report.log_loss < 0.4 < math.log(2)
    assert report.accuracy_low < report.accuracy <= report.accuracy_high


async def test_a_copy_scores_alike_judges_groups_and_survives_its_process(trained, make_choice):
    path, report, scores = trained
    polite = art.Trajectory(
        messages_and_choices=[talk("1 + 1?", "")[0], make_choice("please: it is 2")], reward=0.5, metadata={"k": 1}
    )
    rude = art.Trajectory(messages_and_choices=talk("1 + 1?", "whatever, it is 2"))
    group = art.TrajectoryGroup([rude, polite], metadata={"scenario_id": "s"})
    async with await RewardModel.load(path) as model:
        assert model.report == report
        assert await model.score(CONVERSATIONS, batch_tokens=1) == pytest.approx(scores, abs=1e-3)
        judged = await model.score_group(group)
        assert judged.trajectories[1].reward > judged.trajectories[0].reward
        assert judged.trajectories[1].metrics["independent_reward"] == 0.5
        assert judged.metadata == {"scenario_id": "s"}
        assert (polite.reward, rude.reward) == (0.5, 0.0), "the group given is as before"
        with pytest.raises(BadRequestError, match=r"Conversation 1 has \d+ tokens; this reward model takes up to 128"):
            await model.score([talk("?", "yes"), talk("?", "long " * 60)])
        os.kill(model._worker._process.pid, signal.SIGKILL)
        with pytest.raises(BackendDiedError, match="ended with code -9"):
            await model.score([polite])
        assert await model.score([polite]) == pytest.approx([judged.trajectories[1].reward], abs=1e-4)
        assert await model.score([]) == []


async def test_production_feedback_and_a_low_rank_adapter(tmp_path, tiny_model_path):
    examples = []
    for i, pair in enumerate(make_pairs(48)):
        thumb = i % 2
        examples.append({"messages": pair["chosen"] if thumb else pair["rejected"], "score": thumb})
    model = await RewardModel.train(
        str(tiny_model_path), tmp_path / "m", examples=examples, lora_rank=8, learning_rate=5e-3, held_out=0.4
    )
    async with model:
        better, worse = await model.score([talk("2 + 2?", "please: it is 4"), talk("2 + 2?", "whatever, it is 4")])
    assert better > worse
    assert model.report.held_out_pairs > 0
    assert not list((tmp_path / "m").glob("adapter_*")), "the adapter is merged"
    assert json.loads((tmp_path / "m/reward.json").read_text())["report"]["accuracy"] == model.report.accuracy


async def test_bad_input_names_the_field_and_leaves_nothing(tmp_path, tiny_model_path):
    worker = RewardWorker()
    for base_model, expected in [
        (str(tiny_model_path), "Too few comparisons: 0 to train on"),
        ("/no/such/model", "/no/such/model does not exist"),
    ]:
        pairs = [PreferencePair(**pair) for pair in make_pairs(2)]
        with pytest.raises(BadRequestError, match=expected):
            await worker.ask(TrainReward(base_model=base_model, output=str(tmp_path / "m"), pairs=pairs), RewardReady)
    with pytest.raises(BadRequestError, match=r"holds no reward model: reward\.json is missing"):
        await worker.ask(LoadReward(path=str(tmp_path)), RewardReady)
    await worker.close()
    with pytest.raises(ValueError, match="score"):
        await RewardModel.train(str(tiny_model_path), tmp_path / "m", examples=[{"messages": [], "score": math.nan}])
    assert list(tmp_path.iterdir()) == []
