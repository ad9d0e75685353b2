"""The engines of all base models: which there are, and how each is started."""

from functools import partial
from pathlib import Path

from art.wire import ProcessHealth, RegisterModel
from art_backend.engines.contract import Engine, Member
from art_backend.engines.process import EngineProcess, EngineSettings, Launcher, torch_engine
from art_backend.engines.router import EngineRouter, StartEngine, split_settings
from art_backend.engines.vllm import choose_launcher
from art_backend.errors import BadRequestError
from art_backend.models.base import context_length
from art_backend.planning.architecture import read_architecture
from art_backend.planning.memory import EMBEDDED_KV_BYTES, embedded_kv_bytes
from art_backend.serving.meter import EngineMeter
from art_backend.serving.policies import EngineHost, Gate
from art_backend.settings import Settings

MAX_LORA_RANK = 512
"""The largest rank that can be registered (``LoraSpec``)."""


class Engines:
    """One engine for each base model, and one for each fully fine-tuned model. Each is started when it is first needed.

    Args:
        launcher: How an engine is started; ``None`` starts what the settings ask for.
    """

    def __init__(self, settings: Settings, launcher: Launcher | None = None) -> None:
        self._settings = settings
        self._hosts: dict[str, EngineHost] = {}
        self._launcher = launcher or choose_launcher(
            settings.engine, vllm_python=settings.vllm_python, arguments=tuple(settings.engine_arguments)
        )

    def host(self, spec: RegisterModel, path: Path, rank: int) -> EngineHost:
        """The engine that serves a model.

        Args:
            path: Directory of its base model.
            rank: The largest that adapters on this base model have. The embedded engine takes any; vLLM keeps room and
                computes for it, whatever is loaded.
        """
        base_model = spec.base_model
        key = f"{base_model} {spec.project}/{spec.name}" if spec.full_finetune else base_model
        if key not in self._hosts:
            settings = EngineSettings(
                model_path=path,
                served_name=base_model,
                max_model_len=self.limit(path),
                max_num_seqs=self._settings.max_concurrent_sequences,
                max_loras=0 if spec.full_finetune else EngineSettings.max_loras,
                max_lora_rank=MAX_LORA_RANK if self._launcher is torch_engine else rank,
                threads=self._settings.threads,
                log_path=self._settings.log_dir / "engine.log",
                start_timeout_s=self._settings.engine_start_timeout_s,
                sleeps=not self._settings.placement.dedicated,
                kv_cache_mib=_kv_cache_mib(path, self.limit(path)),
            )
            # vLLM replaces whole weights where it was asked for; the embedded engine does it for every model
            embedded = spec.full_finetune and self._settings.engine == "auto"
            start_one = partial(EngineProcess.start, launcher=torch_engine if embedded else self._launcher)
            start = partial(self._start, start_one)
            self._hosts[key] = EngineHost(settings, Gate(self._settings.hold_timeout_s), start)
        return self._hosts[key]

    async def _start(self, start_one: StartEngine, settings: EngineSettings) -> Engine:
        """Start an engine in as many processes as it is to have."""
        placement = self._settings.placement
        replicas = split_settings(settings, placement.engines, placement.engine_devices)
        return await (start_one(replicas[0]) if len(replicas) == 1 else EngineRouter.start(replicas, start_one))

    def limit(self, base_path: Path) -> int:
        """Longest sequence that a base model is served with."""
        most = self._settings.max_sequence_length
        return min(most, context_length(base_path) or most)

    def meters(self) -> list[tuple[str, EngineMeter]]:
        """The meter of each engine, by the name of its base model."""
        return [(name, host.gate.meter) for name, host in self._hosts.items()]

    def members(self) -> list[tuple[str, Member]]:
        """The processes of each engine, by the name of its base model."""
        return [(name, member) for name, host in self._hosts.items() for member in host.members()]

    def health(self) -> list[ProcessHealth]:
        return [process for host in self._hosts.values() for process in host.health()]

    def hosts(self) -> list[EngineHost]:
        return list(self._hosts.values())


def _kv_cache_mib(base_path: Path, context: int) -> int:
    """Room for one sequence of full length at least, without which an engine does not start."""
    try:
        size = embedded_kv_bytes(read_architecture(str(base_path)), context)
    except BadRequestError:  # a model whose memory is not planned
        size = EMBEDDED_KV_BYTES
    return -(-size // 2**20)
