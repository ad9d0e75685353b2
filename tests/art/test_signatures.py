"""What scripts may leave out, and what it then is: defaults of functions, constructors and fields."""

import importlib
import inspect

import pytest

import art

DEFAULTS = {
    "art.gather:gather_trajectory_groups": {
        "pbar_desc": "gather",
        "pbar_total_completion_tokens": False,
        "max_exceptions": 0,
        "max_metrics": None,
        "after_each": None,
    },
    "art.gather:gather_trajectories": {
        "pbar_desc": "gather",
        "pbar_total_completion_tokens": False,
        "max_exceptions": 0,
    },
    "art.gather:trajectory_group_batches": {
        "max_batch_exceptions": 0,
        "max_concurrent_batches": 4,
        "skip_batches": 0,
        "pbar_desc": "batches",
        "pbar_total_completion_tokens": False,
    },
    "art.capture.scopes:trajectory_group": {
        "exceptions": (),
        "metadata": None,
        "metrics": None,
        "logs": None,
        "return_exceptions": False,
    },
    "art.openai:consume_chat_completion_stream": {"on_chunk": None},
    "art.openai:consume_sync_chat_completion_stream": {"on_chunk": None},
    "art.model:Model.log": {"trajectories": None, "split": "val", "metrics": None, "step": None},
    "art.model:Model.get_inference_name": {"step": None},
    "art.model:Model.litellm_completion_params": {"step": None},
    "art.model:Model.metrics_builder": {"cost_context": None},
    "art.model:TrainableModel.register": {"_openai_client_config": None},
    "art.model:TrainableModel.train": {"config": None, "_config": None, "verbose": False},
    "art.model:TrainableModel.train_sft": {"config": None, "_config": None, "verbose": False},
    "art.model:TrainableModel.delete_checkpoints": {"best_checkpoint_metric": "val/reward"},
    "art.local.backend:LocalBackend": {"in_process": False, "path": None, "gpu_cost_per_hour_usd": None},
    "art.local.backend:LocalBackend.train": {"learning_rate": 5e-6, "verbose": False},
    "art.metrics:MetricsBuilder.for_cost_context": {"buffer_scope": None},
    "art.metrics:MetricsBuilder.register_model_pricing": {
        "cached_prompt_per_million": None,
        "cache_creation_per_million": None,
        "cache_read_per_million": None,
    },
    "art.metrics:track_api_cost": {"response_getter": None},
    "art.rewards.ruler:ruler": {
        "judge_model": "openai/o3",
        "extra_litellm_params": None,
        "rubric": importlib.import_module("art.rewards.ruler").DEFAULT_RUBRIC,
        "tools": None,
        "debug": False,
    },
    "art.rewards.ruler:ruler_score_group": {
        "judge_model": "openai/o3",
        "extra_litellm_params": None,
        "rubric": importlib.import_module("art.rewards.ruler").DEFAULT_RUBRIC,
        "swallow_exceptions": False,
        "debug": False,
    },
    "art.utils.retry:retry": {
        "max_attempts": 3,
        "delay": 0.25,
        "backoff_factor": 2.0,
        "exceptions": (Exception,),
        "on_retry": None,
    },
    "art.utils.limit_concurrency:limit_concurrency": {"derive_key": None},
    "art.utils.iterate_dataset:iterate_dataset": {
        "groups_per_step": 1,
        "num_epochs": 1,
        "initial_step": 0,
        "use_tqdm": True,
    },
    "art.utils.sft:create_lr_schedule": {"method": "linear", "warmup_steps": 0, "min_lr": 0.0},
    "art.utils.sft:create_sft_dataset_iterator": {
        "chunk_size": 10,
        "epochs": 1,
        "batch_size": 2,
        "peak_lr": 2e-4,
        "schedule_type": "linear",
        "warmup_ratio": 0.1,
        "shuffle": True,
        "seed": 42,
        "initial_step": 0,
        "show_progress": True,
    },
    "art.utils.sft:iterate_file": {"epochs": 1, "shuffle_buffer_size": 10000, "seed": 42, "initial_skip": 0},
    "art.utils.sft:train_sft_from_file": {
        "epochs": 1,
        "batch_size": 2,
        "peak_lr": 2e-4,
        "schedule_type": "linear",
        "warmup_ratio": 0.1,
        "initial_step": 0,
        "final_step": None,
        "_config": None,
        "verbose": False,
        "shuffle_buffer_size": 10000,
    },
    "art.utils.group_aggregate:group_aggregate": {"reduce": "mean", "eps": 1e-8, "broadcast": True},
    "art.utils.benchmarking.load_trajectories:load_trajectories": {"models": None, "debug": False, "art_path": None},
    "art.utils.benchmarking.types:BenchmarkModelKey": {"display_name": None, "split": None},
    "art.utils.benchmarking.charts:training_progress_chart": {
        "models": None,
        "title": None,
        "x_label": None,
        "y_label": None,
        "perfect_score": None,
        "legend_loc": "lower right",
    },
    "art.utils.benchmarking.charts:percentage_comparison_bar_chart": {
        "models": None,
        "title": None,
        "y_label": None,
        "perfect_score": None,
        "num_decimals": 0,
    },
    "art.pipeline_trainer:make_group_rollout_fn": {"n": 4},
    "art.pipeline_trainer:PipelineTrainer.train": {"handle_signals": True},
    "art.mcp:MCPResource": {"mime_type": None},
    "art.mcp:generate_scenarios": {
        "resources": (),
        "num_scenarios": 24,
        "show_preview": True,
        "custom_instructions": None,
        "generator_model": "openai/gpt-4.1-mini",
        "generator_api_key": None,
        "generator_base_url": "https://openrouter.ai/api/v1",
    },
    "art.guided_completion:get_guided_completion_params": {"base_tools": None},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_may_be_left_out(name):
    module, path = name.split(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    given = {p.name: p.default for p in inspect.signature(found).parameters.values()}
    assert {key: given.get(key, "missing") for key in DEFAULTS[name]} == DEFAULTS[name]


def test_fields_of_a_model():
    model = art.TrainableModel(name="m", project="p", base_model="b")
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    assert fields == {
        "name": "m",
        "project": "p",
        "base_model": "b",
        "entity": None,
        "id": None,
        "run_id": None,
        "config": None,
        "trainable": True,
        "inference_api_key": None,
        "inference_base_url": None,
        "inference_model_name": None,
        "base_path": ".art",
        "report_metrics": None,
    }
    assert not art.Model(name="m", project="p").trainable
    with pytest.raises(TypeError):
        art.Model("m", "p")


def test_judgements_and_scenarios_are_of_the_usual_form():
    ruler = importlib.import_module("art.rewards.ruler")
    assert {name: field.annotation for name, field in ruler.TrajectoryScore.model_fields.items()} == {
        "trajectory_id": str,
        "explanation": str,
        "score": float,
    }
    assert ruler.Response.model_fields["scores"].annotation == list[ruler.TrajectoryScore]
