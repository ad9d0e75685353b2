"""Which engine serves: what was asked for, else what suits this machine."""

import logging

from art_backend.engines.process import Launcher, torch_engine
from art_backend.engines.vllm import VllmInstallation, find_vllm, vllm_engine
from art_backend.errors import BadRequestError
from art_backend.settings import EngineKind

_INSTALL = (
    "Install it: pip install 'art-trainer[vllm]' where there is a CUDA device; `make vllm` for its CPU build. "
    "Then name that environment's Python with --vllm-python (or ART_VLLM_PYTHON)."
)
_log = logging.getLogger(__name__)


def choose_launcher(kind: EngineKind, *, vllm_python: str | None, arguments: tuple[str, ...]) -> Launcher:
    """Return how to start the engine, and say in the log which one it is.

    Args:
        kind: ``auto`` is vLLM where it and a CUDA device are found, else the embedded engine.
        vllm_python: Interpreter that has vLLM; ``None`` looks in this one.
        arguments: More command-line arguments for vLLM.

    Raises:
        BadRequestError: vLLM was asked for and is not there, or the arguments are not for the chosen engine.
    """
    installation = None if kind == "torch" else find_vllm(vllm_python)
    if kind == "vllm" and installation is None:
        raise BadRequestError(f"engine: no vLLM in {vllm_python or 'this Python'}. {_INSTALL}", param="engine")
    if installation is not None and (kind == "vllm" or _usable(installation)):
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


def _usable(installation: VllmInstallation) -> bool:
    if installation.device != "cuda":
        return False
    import torch  # slow to import, and not needed on the way to any other answer

    return torch.cuda.is_available()
