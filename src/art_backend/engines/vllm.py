"""vLLM as the engine: stock, in its own process and, where wished, in a Python of its own.

Everything goes through its public surface: its command line, its environment variables, its HTTP API. Seen on vLLM 0.32.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoConfig

from art_backend.engines.key_check.art_key_check import KEY_VARIABLE
from art_backend.engines.process import CPU_ENVIRONMENT, EngineSettings, Launch, Launcher
from art_backend.engines.vllm_client import VllmClient
from art_backend.engines.zero_adapter import write_zero_adapter
from art_backend.errors import BadRequestError
from art_backend.models.compute import choose_dtype
from art_backend.planning.memory import GPU_MEMORY_SHARE, VERSIONS_IN_A_BATCH

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that ``--max-lora-rank`` takes."""

BARE_NAME = "art-base-without-adapter"
"""On a CPU, the name of the base model as such, which nobody asks for (see ``zero_adapter``)."""

CPU_BLOCK = 32
"""Tokens of a block of the KV cache on a CPU, the fewest that its kernels like. Of a prompt that was seen before, all but the last
block is found; with vLLM's own 128 an agent's short turns would be computed again."""

KEEP_ALIVE_S = 600
"""Longer than any client of ours keeps an idle connection."""

OURS = frozenset(
    [
        "api-key",
        "disable-fastapi-docs",
        "enable-lora",
        "enable-scale-out",
        "host",
        "logprobs-mode",
        "lora-modules",
        "middleware",
        "model",
        "port",
        "served-model-name",
        "structured-outputs-config",
        "tokens-only",
        "uds",
    ]
)
"""Options that the service depends on, so that nobody else may set them."""

CPU_ONLY = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer uses the same cores
    # beside adapters its model is not compiled anyway; of what is left, the first request would wait for a C++ compiler
    "TORCH_COMPILE_DISABLE": "1",
    # one process for scheduler and model: the scheduler's own would spin on a core while the model computes
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Defaults of the CPU build; what the user has set wins."""

_PROBE = """
from importlib.metadata import PackageNotFoundError, version
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
cpu = found("vllm-cpu")
print(cpu or found("vllm"), "cpu" if cpu or found("torch").endswith("+cpu") else "cuda")
"""
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class VllmInstallation:
    """A Python that has vLLM."""

    python: str
    version: str
    device: Literal["cpu", "cuda"]
    """What this build of it computes on."""


def find_vllm(python: str | None = None) -> VllmInstallation | None:
    """Look whether a Python has vLLM, without importing it.

    Args:
        python: Path of an interpreter; ``None`` means this one.

    Raises:
        BadRequestError: ``python`` is not an interpreter that runs.
    """
    interpreter = python or sys.executable
    try:
        probe = subprocess.run(
            [interpreter, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BadRequestError(
            f"vllm_python: {interpreter} is not a Python that runs ({error}). Give the path of the interpreter of vLLM's "
            "environment, such as .venv-vllm/bin/python.",
            param="vllm_python",
        ) from error
    version, device = probe.stdout.rsplit(" ", 1)
    if not version:
        return None
    return VllmInstallation(interpreter, version, "cpu" if device.strip() == "cpu" else "cuda")


def vllm_engine(installation: VllmInstallation, arguments: tuple[str, ...] = ()) -> Launcher:
    """A launcher of vLLM.

    Args:
        arguments: More command-line arguments of vLLM; they go before those that are derived.

    Raises:
        BadRequestError: An argument sets what the service depends on.
    """
    for argument in arguments:
        option = argument.removeprefix("--").split("=", 1)[0].replace("_", "-")
        if argument.startswith("--") and option.removeprefix("no-") in OURS:
            raise BadRequestError(
                f"engine_arguments: --{option} is set by the service itself. Leave it out.", param="engine_arguments"
            )
    return partial(_launch, installation, arguments)


def _launch(
    installation: VllmInstallation, arguments: tuple[str, ...], settings: EngineSettings, socket: Path, api_key: str
) -> Launch:
    argv = [installation.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--uds", str(socket), "--middleware", "art_key_check.KeyCheck"]
    argv += ["--model", str(settings.model_path)]
    argv += ["--dtype", _dtype(installation, settings), "--max-num-seqs", str(settings.max_num_seqs)]
    argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    # scores in float32, as the trainer computes them: in bf16 their rounding alone moves a log-probability by 0.1
    argv += ["--hf-overrides", '{"head_dtype": "float32"}']
    # the same library that the trainer replays structures with, so that both allow the same tokens
    argv += ["--structured-outputs-config", '{"backend": "guidance"}']
    argv += ["--enable-prefix-caching", "--uvicorn-log-level", "warning", "--disable-fastapi-docs"]
    if settings.max_model_len is not None:
        argv += ["--max-model-len", str(settings.max_model_len)]
    if not (settings.model_path / "tokenizer_config.json").is_file():
        argv += ["--skip-tokenizer-init"]
    adapted = settings.max_loras > 0
    if adapted:
        slots, adapters = min(VERSIONS_IN_A_BATCH, settings.max_loras), settings.max_loras
        if installation.device == "cpu":
            slots, adapters = slots + 1, adapters + 1
        argv += ["--enable-lora", "--max-lora-rank", str(_rank(settings.max_lora_rank))]
        argv += ["--max-loras", str(slots), "--max-cpu-loras", str(adapters)]
    if installation.device == "cuda":
        argv += ["--gpu-memory-utilization", str(GPU_MEMORY_SHARE)]
        argv += ["--enable-sleep-mode"] if settings.sleeps else []
        argv += ["--tensor-parallel-size", str(len(settings.devices))] if len(settings.devices) > 1 else []
    else:
        argv += ["--kv-cache-memory-bytes", str(settings.kv_cache_mib * 2**20)]
        argv += ["--distributed-executor-backend", "uni", "--block-size", str(CPU_BLOCK)]
    if installation.device == "cpu" and adapted:
        zero = write_zero_adapter(
            settings.model_path, settings.log_path.with_name(f"{settings.log_path.stem}-zero-adapter")
        )
        argv += ["--served-model-name", BARE_NAME, "--lora-modules", f"{settings.served_name}={zero}"]
    else:
        argv += ["--served-model-name", settings.served_name]
    if installation.device == "cpu" and not adapted:
        argv += ["--enforce-eager"]
        _refuse_tied(settings.model_path)
    env = {
        KEY_VARIABLE: api_key,
        "VLLM_API_KEY": api_key,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, sleep, wake_up
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
        "PYTHONPATH": _python_path(),
    }
    defaults = {"VLLM_NO_USAGE_STATS": "1"}
    if installation.device == "cpu":
        defaults |= CPU_ENVIRONMENT | CPU_ONLY
        if settings.threads is not None:
            defaults["OMP_NUM_THREADS"] = str(settings.threads)
    client = partial(VllmClient, served_name=settings.served_name)
    return Launch(
        name="vLLM engine",
        argv=[*argv, *arguments],
        env=env,
        defaults=defaults,
        client=client,
        death_signal=signal.SIGTERM,  # it has processes of its own to end
    )


def _refuse_tied(model_path: Path) -> None:
    """Raises BadRequestError for a model whose weights vLLM's CPU build would replace but in part."""
    if AutoConfig.from_pretrained(model_path).get_text_config().tie_word_embeddings:
        raise BadRequestError(
            f"full_finetune: {model_path} shares its embeddings with its output layer, of which vLLM's CPU build keeps a copy "
            "that it does not renew when weights are replaced. Start the service with --engine torch.",
            param="full_finetune",
        )


def _dtype(installation: VllmInstallation, settings: EngineSettings) -> str:
    """On a CPU ``auto`` is the trainer's choice: vLLM's own is the checkpoint's type, which many CPUs only emulate."""
    if settings.dtype != "auto" or installation.device == "cuda":
        return settings.dtype
    return str(choose_dtype("auto", torch.device("cpu"))).removeprefix("torch.")


def _rank(rank: int) -> int:
    """The smallest rank that vLLM takes and that is at least ``rank``."""
    return next(allowed for allowed in LORA_RANKS if allowed >= rank)


def _python_path() -> str:
    """The directory of the middleware, before what the user has set."""
    ours = str(Path(__file__).with_name("key_check"))
    theirs = os.environ.get("PYTHONPATH")
    return f"{ours}{os.pathsep}{theirs}" if theirs else ours
