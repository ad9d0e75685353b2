"""What scripts import is there: names, defaults, and nothing that happens beside it."""

import importlib
import inspect
import subprocess
import sys
from dataclasses import asdict

import pytest
from pydantic import BaseModel

import art
from art.backend.options import build_options, build_sft_options
from art.pipeline_trainer import PipelineTrainer
from art.types import (
    LocalTrainResult,
    MessagesAndChoices,
    Tools,
    TrainConfig,
    TrainResult,
    TrainSFTConfig,
)
from art.wire import ApiErrorBody, ErrorCode

EXPORTS = {
    "art": "dev auto_trajectory capture_auto_trajectory gather_trajectories gather_trajectory_groups trajectory_group_batches "
    "Backend LocalBackend LocalTrainResult Messages MessagesAndChoices Tools Model "
    "TrainableModel retry TrainSFTConfig TrainConfig TrainResult Trajectory TrajectoryGroup capture_yielded_trajectory "
    "yield_trajectory trajectory trajectory_group current_trajectory no_capture TrajectoryExchanges",
    "art.types": "Message MessageOrChoice Messages MessagesAndChoices Tools Choice Verbosity TrainConfig TrainSFTConfig "
    "TrainResult LocalTrainResult",
    "art.trajectories": "PydanticException History Trajectory TrajectoryGroup MetadataValue get_messages",
    "art.gather": "gather_trajectories gather_trajectory_groups wrap_group_awaitable wrap_trajectories_awaitable "
    "record_metrics GatherContext set_gather_context get_gather_context",
    "art.model": "Model TrainableModel",
    "art.backend": "Backend AnyModel AnyTrainableModel",
    "art.openai": "consume_chat_completion_stream consume_sync_chat_completion_stream init_chat_completion "
    "update_chat_completion",
    "art.metrics": "MetricsBuilder track_api_cost is_cumulative_metric_key is_builder_managed_metric "
    "to_cumulative_metric_key",
    "art.rewards": "ruler ruler_score_group",
    "art.rewards.ruler": "ruler ruler_score_group TrajectoryScore Response DEFAULT_RUBRIC",
    "art.local": "LocalBackend",
    "art.local.backend": "LocalBackend",
    "art.dev": "TrainConfig TrainSFTConfig InternalModelConfig InitArgs EngineArgs PeftArgs TrainerArgs "
    "OpenAIServerConfig ServerArgs is_dedicated_mode validate_dedicated_config",
    "art.utils": "format_message get_model_step iterate_dataset limit_concurrency log_http_errors record_provenance retry",
    "art.utils.sft": "create_lr_schedule create_sft_dataset_iterator SFTChunk iterate_file get_file_row_count "
    "train_sft_from_file",
    "art.utils.strip_logprobs": "strip_logprobs",
    "art.utils.trajectory_logging": "write_trajectory_groups_parquet read_trajectory_groups_parquet",
    "art.utils.output_dirs": "get_default_art_path get_models_dir get_model_dir get_output_dir_from_model_properties "
    "get_step_checkpoint_dir get_trajectories_dir get_trajectories_split_dir",
    "art.utils.get_repo_root_path": "get_repo_root_path",
    "art.utils.get_model_step": "get_model_step",
    "art.utils.litellm": "convert_litellm_choice_to_openai",
    "art.utils.logging": "info step ok warn err dim",
    "art.utils.group_aggregate": "group_aggregate",
    "art.utils.benchmarking.load_trajectories": "load_trajectories",
    "art.utils.benchmarking.aggregate_trajectories": "load_aggregated_trajectories load_latest_metrics",
    "art.utils.benchmarking.filter_model_split": "filter_rename_model_split",
    "art.utils.benchmarking.types": "BenchmarkModelKey",
    "art.utils.benchmarking.charts": "training_progress_chart percentage_comparison_bar_chart",
    "art.pipeline_trainer": "PipelineTrainer make_group_rollout_fn StatusReporter RolloutFn SingleRolloutFn EvalFn ScenarioT",
    "art.pipeline_trainer.trainer": "PipelineTrainer",
    "art.errors": "ARTError",
    "art.langgraph": "wrap_rollout init_chat_model",
    "art.mcp": "MCPTool MCPResource GeneratedScenario GeneratedScenarioCollection complete_task_tool generate_scenarios "
    "preview_scenarios",
    "art.guided_completion": "get_guided_completion_params",
}


@pytest.mark.parametrize("module", EXPORTS)
def test_modules_have_the_names_that_scripts_import(module):
    found = importlib.import_module(module)
    assert [name for name in EXPORTS[module].split() if not hasattr(found, name)] == []


def test_the_package_lists_its_names():
    assert set(EXPORTS["art"].split()) <= set(art.__all__)


def test_importing_has_no_side_effects(tmp_path):
    (tmp_path / ".env").write_text("WANDB_API_KEY=from-the-file\n")
    code = """
import asyncio, os, sys
loop = asyncio.run
import art
[getattr(art, name) for name in art.__all__]
import multiprocessing
assert multiprocessing.get_start_method(allow_none=True) is None
assert "WANDB_API_KEY" not in os.environ, "a .env file is not read by itself"
assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
from art.local.backend import START_TIMEOUT_S
assert START_TIMEOUT_S == 7.0
assert asyncio.run is loop and "nest_asyncio" not in sys.modules
"""
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "ART_SERVER_TIMEOUT": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_defaults_of_the_small_types():
    assert (TrainConfig().learning_rate, TrainConfig().kl_penalty_coef) == (5e-6, 0.0)
    assert (TrainSFTConfig().learning_rate, TrainSFTConfig().batch_size) == (5e-5, "auto")
    assert TrainSFTConfig(learning_rate=[1e-4, 1e-5]).learning_rate == [1e-4, 1e-5]
    assert build_sft_options(TrainSFTConfig(), {}).batch_size == 2
    assert asdict(TrainResult(3)) == {"step": 3, "metrics": {}, "checkpoint_path": None}
    assert LocalTrainResult is TrainResult


def test_messages_pass_pydantic_as_they_are_also_in_models_of_ones_own(make_choice):
    class Memory(BaseModel):
        items: MessagesAndChoices
        tools: Tools | None = None

    odd = {"role": 5, "finish_reason": "stop", "message": {"content": object()}}
    choice, tools = make_choice(), [{"anything": object()}]
    memory = Memory(items=[odd, choice], tools=tools)
    assert (memory.items[0], memory.items[1]) == (odd, choice)
    assert memory.items[0] is odd
    assert memory.items[1] is choice
    assert memory.tools == tools


def defaults(function):
    return {p.name: p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty}


def test_defaults_of_the_pipeline():
    assert defaults(PipelineTrainer.__init__) == {
        "eval_fn": None,
        "num_rollout_workers": 16,
        "min_batch_size": 4,
        "max_batch_size": None,
        "max_steps_off_policy": 4,
        "queue_maxsize": None,
        "learning_rate": 1e-5,
        "loss_fn": "cispo",
        "loss_fn_config": None,
        "normalize_advantages": True,
        "adam_params": None,
        "max_steps": None,
        "discard_queue_multiplier": 100,
        "log_interval_seconds": 60.0,
        "status_ewa_alpha": 0.2,
        "total_scenarios": None,
        "eval_every_n_steps": 20,
        "eval_step_0": True,
        "save_checkpoint": True,
        "resume": True,
    }


def test_every_option_of_training_that_scripts_give_is_taken():
    """With the values that other trainers have by default: they mean what is done anyway, so none warns."""
    given = {
        "kl_penalty_coef": 0.0,
        "kl_penalty_reference_step": None,
        "kl_ref_adapter_path": None,
        "ppo": False,
        "epsilon": None,
        "epsilon_high": None,
        "advantage_balance": 0.0,
        "scale_rewards": True,
        "importance_sampling_level": "token",
        "max_negative_advantage_importance_sampling_weight": None,
        "mask_prob_ratio": False,
        "kimi_k2_tau": None,
        "precalculate_logprobs": False,
        "allow_training_without_logprobs": False,
        "plot_tensors": False,
        "truncated_importance_sampling": None,
        "scale_learning_rate_by_reward_std_dev": False,
        "logprob_calculation_chunk_size": 1024,
        "num_trajectories_learning_rate_multiplier_power": 0.0,
        "save_checkpoint": True,
        "loss_type": None,
        "max_completion_length": None,
        "packed_sequence_length": None,
        "drop_zero_advantage_trajectories": True,
        "loss_fn": None,
        "loss_fn_config": None,
        "normalize_advantages": True,
        "adam_params": None,
    }
    assert build_options(5e-6, given) == build_options(5e-6, {})


def test_errors_carry_their_status():
    error = art.errors.ARTError("what", 418)
    assert (str(error), error.detail, error.status_code) == ("what", "what", 418)
    missing = art.errors.MissingExtraError("TRL", "trl")
    assert str(missing) == "TRL is not installed. Install it: pip install 'art-trainer[trl]'"
    assert isinstance(missing, ImportError)


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_of_the_wire_has_its_error(code):
    error = art.errors.from_api_error(ApiErrorBody(code=code, message="what", param="options.epsilon"), 400)
    assert (str(error), error.code, error.param) == ("what", code, "options.epsilon")
    assert (type(error) is art.errors.BackendError) == (code is ErrorCode.INTERNAL)
