"""What ``GET /metrics`` reports, in the text format of Prometheus."""

from art_backend.engines.torch_engine.engine import Engine
from art_backend.engines.torch_engine.sequence import BLOCK_SIZE

PREFIX = "art_engine_"


def render_metrics(engine: Engine) -> str:
    """One sample per metric; totals are counted since the start."""
    counters, scheduler, cache = engine.counters, engine.scheduler, engine.cache
    rows: list[tuple[str, str, str, float]] = [
        ("requests_running", "gauge", "Sequences being computed.", len(scheduler.running)),
        ("requests_waiting", "gauge", "Sequences that wait for room or for the end of a pause.", engine.num_waiting),
        ("requests_finished_total", "counter", "Sequences that ended by themselves.", counters.finished),
        ("requests_aborted_total", "counter", "Sequences that were ended from outside.", counters.aborted),
        ("preemptions_total", "counter", "Times a sequence gave its blocks to an older one.", scheduler.preemptions),
        ("prompt_tokens_total", "counter", "Prompt tokens received.", counters.prompt_tokens),
        (
            "prompt_tokens_computed_total",
            "counter",
            "Prompt tokens that went through the model; the others came from the prefix cache.",
            scheduler.prompt_tokens_computed,
        ),
        ("generated_tokens_total", "counter", "Tokens sampled.", counters.generated_tokens),
        ("steps_total", "counter", "Forward passes.", counters.steps),
        ("busy_seconds_total", "counter", "Seconds in forward passes and sampling.", counters.busy_s),
        ("paused_seconds_total", "counter", "Seconds paused.", engine.paused_s),
        ("kv_cache_usage_ratio", "gauge", "Share of the KV cache that running sequences hold.", cache.num_held / cache.num_blocks),
        ("kv_cache_tokens", "gauge", "Size of the KV cache, in tokens.", cache.num_blocks * BLOCK_SIZE),
        ("kv_cache_cached_tokens", "gauge", "Tokens that nobody uses now, kept for later prompts.", cache.num_cached * BLOCK_SIZE),
    ]  # fmt: skip
    return "".join(
        f"# HELP {PREFIX}{name} {text}\n# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value:.10g}\n"
        for name, kind, text, value in rows
    )
