"""``python -m art_backend.engines.torch_engine``: load a model and serve it.

The key comes in the environment variable ``ART_ENGINE_KEY``, so that it is not seen in the list of processes.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
import uvicorn

from art_backend.engines.key_check.art_key_check import KEY_VARIABLE
from art_backend.engines.torch_engine.attention import UnsupportedModelError
from art_backend.engines.torch_engine.engine import Engine
from art_backend.engines.torch_engine.model_thread import ModelThread
from art_backend.engines.torch_engine.runner import ModelRunner
from art_backend.engines.torch_engine.server import Deliveries, build_app
from art_backend.errors import ServiceError
from art_backend.models.compute import DTYPES, choose_device, choose_dtype

KEEP_ALIVE_S = 600
"""Longer than any client of ours keeps an idle connection."""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Options are named as vLLM names them, where it has them."""
    parser = argparse.ArgumentParser(prog="python -m art_backend.engines.torch_engine")
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--served-model-name", help="name of the base model in requests; default: the directory")
    parser.add_argument("--uds", required=True, help="path of the Unix socket to listen on")
    parser.add_argument("--dtype", choices=["auto", *DTYPES], default="auto")
    parser.add_argument("--max-model-len", type=int, help="longest prompt plus completion; default: the model's limit")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="most sequences computed at the same time")
    parser.add_argument("--max-loras", type=int, default=8, help="most adapters loaded at the same time")
    parser.add_argument("--max-lora-rank", type=int, default=64)
    parser.add_argument("--kv-cache-mib", type=int, default=1024, help="size of the KV cache")
    parser.add_argument("--threads", type=int, help="CPU threads; default: one per core")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    options = parse_arguments(argv)
    api_key = os.environ.get(KEY_VARIABLE, "")
    if not api_key:
        raise SystemExit(f"Set {KEY_VARIABLE}: this server loads weights for anyone who has its key.")
    device = choose_device()

    def load() -> ModelRunner:
        if options.threads:
            torch.set_num_threads(options.threads)
        return ModelRunner(
            options.model,
            dtype=choose_dtype(options.dtype, device),
            device=device,
            kv_cache_bytes=options.kv_cache_mib * 2**20,
            max_model_len=options.max_model_len,
        )

    thread = ModelThread()
    try:
        runner = thread.submit(load).result()
    except (UnsupportedModelError, ServiceError, ValueError, OSError) as error:
        raise SystemExit(f"Cannot serve {options.model}: {error}") from error
    deliveries = Deliveries()
    engine = Engine(
        runner,
        served_name=options.served_model_name or str(options.model),
        max_num_seqs=options.max_num_seqs,
        token_budget=512 if device.type == "cpu" else 8192,
        max_loras=options.max_loras,
        max_lora_rank=options.max_lora_rank,
        publish=deliveries.publish,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        deliveries.bind()
        engine.start(thread)
        yield

    app = build_app(engine, api_key=api_key, lifespan=lifespan)
    uvicorn.run(
        app,
        uds=options.uds,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
