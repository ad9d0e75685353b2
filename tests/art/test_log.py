"""``model.log`` to the last key: what becomes of each metric, and which file it is in."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import polars
import pytest

import art
from art.logs import directories as output_dirs
from art.logs.parquet import read_trajectory_groups_parquet
from art.metrics import MetricsBuilder


@pytest.fixture
def model(tmp_path):
    return art.Model(name="m", project="p", base_path=str(tmp_path))


def trajectory(reward=0.0, **metrics):
    return art.Trajectory(reward=reward, metrics=metrics)


async def test_group_metrics_count_where_there_are_trajectories(model, read_history):
    groups = [
        art.TrajectoryGroup([trajectory(1.0)], metrics={"judged": 1}),
        art.TrajectoryGroup([trajectory(0.0)], metrics={"judged": 4, "other": 2}),
        art.TrajectoryGroup([], exceptions=[ValueError("x")], metrics={"judged": 100}),
    ]
    await model.log(groups, split="val", step=0)
    (row,) = read_history(model)
    assert (row["val/group_judged"], row["val/group_other"]) == (2.5, 2.0)
    assert row["val/reward_std_dev"] == 0.0
    assert row["val/exception_rate"] == pytest.approx(1 / 3)


async def test_keys_without_samples_are_left_out(model, read_history):
    await model.log([art.TrajectoryGroup([], exceptions=[ValueError("x")])], split="val", step=0)
    (row,) = read_history(model)
    assert "val/reward" not in row
    assert (row["val/exception_rate"], row["val/reward_std_dev"]) == (1.0, 0.0)


async def test_counts_are_of_the_usual_splits_and_give_way_to_given_ones(model, read_history):
    group = art.TrajectoryGroup([trajectory(1.0), trajectory(0.0)])
    await model.log([group], split="train", metrics={"data/step_num_scenarios": 7}, step=1)
    await model.log([group], split="discarded", step=1)
    await model.log([group], split="test", step=1)
    train, discarded, test = read_history(model)
    assert (train["data/step_num_scenarios"], train["data/step_num_groups_trainable"]) == (7.0, 1.0)
    assert not [key for key in discarded if "data/" in key]
    assert discarded["discarded/reward"] == 0.5
    assert (test["data/step_num_scenarios"], "data/step_num_groups_trainable" in test) == (1.0, False)


async def test_what_is_summed_is_summed_over_trajectories_groups_and_metrics(model, read_history):
    members = [trajectory(0.0, **{"data/step_calls": 2, "time/step_tool_s": 1.5, "costs/api": 1}) for _ in range(2)]
    group = art.TrajectoryGroup(members, metrics={"data/step_calls": 3, "throughput/step_x": 1})
    await model.log([group], split="train", metrics={"data/step_calls": 4}, step=1)
    await model.log([group], split="val", step=1)
    train, val = read_history(model)
    assert (train["data/step_calls"], train["time/step_tool_s"], train["throughput/step_x"]) == (11.0, 3.0, 1.0)
    assert (train["data/cum/calls"], val["data/cum/calls"]) == (11.0, 18.0), "logged twice, counted twice"
    assert (train["costs/cum/api"], val["costs/cum/api"]) == (2.0, 4.0)


@pytest.mark.parametrize("place", ["trajectory", "group", "metrics"])
async def test_the_old_form_of_costs_is_refused_wherever_it_stands(model, place):
    old = {"costs_api": 1.0}
    group = art.TrajectoryGroup(
        [trajectory(1.0, **(old if place == "trajectory" else {}))], metrics=old if place == "group" else {}
    )
    with pytest.raises(ValueError, match="Write the metric 'costs_api' as 'costs/api'"):
        await model.log([group], metrics=old if place == "metrics" else None, step=0)


async def test_costs_of_any_other_split_are_its_own(model, read_history):
    token = model.activate_metrics_context("shadow")
    MetricsBuilder.get_active().add_cost("x", 2.0)
    token.var.reset(token)
    await model.log(metrics={"reward": 1.0}, split="val", step=1)
    await model.log(metrics={"reward": 1.0}, split="shadow", step=1)
    val, shadow = read_history(model)
    assert "costs/x" not in val
    assert shadow["shadow/costs/x"] == 2.0


async def test_rows_are_floats_that_polars_reads(model, tmp_path):
    await model.log([trajectory(1, won=True, n=3)], split="val", step=0)
    await model.log([trajectory(0, won=False, n=4)], split="val", step=1)
    frame = polars.read_ndjson(tmp_path / "p/models/m/history.jsonl")
    assert frame["val/won"].to_list() == [1.0, 0.0]
    assert {frame[name].dtype for name in ("val/reward", "val/won", "val/n", "training_step")} == {polars.Float64}
    assert frame["recorded_at"].str.to_datetime().is_sorted()


async def test_a_second_log_of_a_step_replaces_its_trajectories(model, tmp_path):
    await model.log([trajectory(0.25), trajectory(0.5)], split="val", step=3)
    await model.log([trajectory(0.75)], split="val", step=3)
    (group,) = read_trajectory_groups_parquet(tmp_path / "p/models/m/trajectories/val/0003.parquet")
    assert [t.reward for t in group] == [0.75]


async def test_a_model_without_steps_logs_at_zero_and_failures_count(model, read_history):
    await model.log(iter([trajectory(1.0), ValueError("x")]))
    (row,) = read_history(model)
    assert (row["step"], row["val/exception_rate"], row["data/step_num_trajectories"]) == (0, 0.5, 2.0)


class Automatic(art.backend.MetricSink):
    """Gives automatic metrics."""

    def _model_inference_name(self, model, step=None):
        return f"served/{model.name}/{step}"

    def automatic_gpu_cost_per_hour_usd(self, model):
        return 3600.0

    async def record_metrics(self, model, metrics, *, split, step):
        pass


async def test_automatic_metrics_make_a_row_of_nothing(model, read_history):
    model._backend = Automatic()
    await model.log(metrics={}, split="train", step=1)
    (row,) = read_history(model)
    assert row["costs/gpu"] == pytest.approx(row["time/step_wall_s"])
    assert (model.get_inference_name(), model.get_inference_name(0)) == ("served/m/None", "served/m/0")


def test_names_of_a_model_that_is_served_elsewhere():
    model = art.Model(
        name="m", project="p", inference_model_name="other", inference_base_url="http://x", inference_api_key="k"
    )
    assert (model.get_inference_name(), model.get_inference_name(0)) == ("other", "other@0")


async def test_a_client_bears_many_calls_and_is_made_anew_for_a_new_address(model):
    model.inference_base_url, model.inference_api_key = "http://127.0.0.1:9/v1", "k"
    first = model.openai_client()
    assert isinstance(first, openai.AsyncOpenAI)
    pool = first._client._transport._pool
    assert pool._max_connections == 100_000
    model.inference_base_url = "http://127.0.0.1:8/v1"
    assert str(model.openai_client().base_url) == "http://127.0.0.1:8/v1/"


def test_state_is_merged_by_many_at_once(model):
    start = threading.Barrier(8)

    def merge(n):
        start.wait()
        for k in range(20):
            model.merge_state({"all": {f"{n}-{k}": n}})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(merge, range(8)))
    assert len(model.read_state()["all"]) == 160
    path = model._path("state.json")
    assert [entry.name for entry in path.parent.iterdir() if "partial" in entry.name] == []
    json.loads(path.read_text())


def test_where_things_lie(tmp_path, monkeypatch):
    root = str(tmp_path)
    model = art.Model(name="m", project="p")
    directory = output_dirs.get_model_dir(model, root)
    assert directory == output_dirs.get_output_dir_from_model_properties("p", "m", root) == f"{root}/p/models/m"
    assert output_dirs.get_models_dir("p", root) == f"{root}/p/models"
    assert output_dirs.get_step_checkpoint_dir(directory, 7) == f"{directory}/checkpoints/0007"
    assert output_dirs.get_trajectories_dir(directory) == f"{directory}/trajectories"
    assert output_dirs.get_trajectories_split_dir(directory, "val") == f"{directory}/trajectories/val"
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert output_dirs.get_default_art_path() == f"{root}/.art"
    assert output_dirs.get_models_dir("p") == f"{root}/.art/p/models"


class Steps:
    """A backend that tells what it was asked."""

    def __init__(self, metrics=None):
        self.metrics, self.asked = metrics, []

    async def register(self, model):
        pass

    async def _prepare_backend_for_training(self, model, config):
        return "http://127.0.0.1:1/v1", "key"

    def _model_inference_name(self, model, step=None):
        return f"{model.name}@5"

    async def _get_step(self, model):
        self.asked.append("step")
        return 5

    async def train_sft(self, model, trajectories, config=None, **options):
        return None

    async def train(self, model, groups, **options):
        return art.TrainResult(5, self.metrics)


async def test_nothing_to_fine_tune_on_asks_nothing_and_writes_nothing(tmp_path):
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    backend = Steps()
    await model.register(backend)
    assert (model.inference_model_name, model.inference_api_key) == ("m@5", "key")
    await model.train_sft([])
    assert (backend.asked, list(Path(tmp_path).iterdir())) == ([], [])


async def test_a_trainers_own_time_is_kept_by_the_old_way(tmp_path, read_history):
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await model.register(Steps({"time/step_trainer_s": 7.0}))
    with pytest.warns(DeprecationWarning):
        await model.train([art.TrajectoryGroup([trajectory(1.0)])])
    assert read_history(model)[0]["time/step_trainer_s"] == 7.0


async def test_the_step_of_a_row_is_the_backends_unless_it_is_given(tmp_path, read_history):
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await model.register(Steps())
    await model.log(metrics={"reward": 1.0})
    await model.log(metrics={"reward": 1.0}, step=2)
    assert [row["step"] for row in read_history(model)] == [5, 2]
