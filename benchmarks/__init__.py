"""Ours against the peer, measured alternately in one run. ``python -m benchmarks.NAME [--quick] [--json PATH]``."""
