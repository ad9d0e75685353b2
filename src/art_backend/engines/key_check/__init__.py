"""A directory of its own for the one module of ours that vLLM's Python imports."""
