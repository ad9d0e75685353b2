"""The embedded engine: a small inference server that speaks the engine contract of docs/engines.md.

Start it with ``python -m art_backend.engines.torch_engine --model PATH --uds SOCKET`` and the key in ``ART_ENGINE_KEY``.

``server`` (HTTP, event loop) → ``engine`` (the model loop, in ``model_thread``) → ``scheduler`` (which tokens are computed
next) → ``runner`` (one forward pass over them) → ``sampler``. ``blocks`` knows what the KV cache holds and shares common
prefixes; ``kv_pool`` is its memory; ``attention`` reads it; ``adapters`` applies several LoRA adapters in one batch.
"""
