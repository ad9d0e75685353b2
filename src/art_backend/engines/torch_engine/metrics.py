"""What ``GET /metrics`` reports, in the text format of Prometheus."""

from art_backend.engines.torch_engine.engine import Engine
from art_backend.engines.torch_engine.sequence import BLOCK_SIZE

PREFIX = "art_engine_"


def render_metrics(engine: Engine) -> str:
    """One sample per metric; totals are counted since the start."""
    counters, scheduler, cache = engine.counters, engine.scheduler, engine.cache
    rows: list[tuple[str, str, str, float]] = [
        ("requests_running", "gauge", "Sequences being computed.", len(scheduler.running)),
        ("requests_waiting", "gauge", "Sequences waiting for room or for the end of a pause.", engine.num_waiting),
        ("requests_finished_total", "counter", "Sequences that finished.", counters.finished),
        ("requests_aborted_total", "counter", "Sequences that were aborted.", counters.aborted),
        ("preemptions_total", "counter", "Times a sequence was preempted for an older one.", scheduler.preemptions),
        ("prompt_tokens_total", "counter", "Prompt tokens received.", counters.prompt_tokens),
        (
            "prompt_tokens_computed_total",
            "counter",
            "Prompt tokens computed; the others came from the prefix cache.",
            scheduler.prompt_tokens_computed,
        ),
        ("generated_tokens_total", "counter", "Tokens sampled.", counters.generated_tokens),
        ("steps_total", "counter", "Forward passes.", counters.steps),
        ("busy_seconds_total", "counter", "Seconds in forward passes and sampling.", counters.busy_s),
        ("paused_seconds_total", "counter", "Seconds paused.", engine.paused_s),
        ("kv_cache_usage_ratio", "gauge", "Fraction of the KV cache held by running sequences.", cache.num_held / cache.num_blocks),
        ("kv_cache_tokens", "gauge", "Size of the KV cache, in tokens.", cache.num_blocks * BLOCK_SIZE),
        ("kv_cache_cached_tokens", "gauge", "Unused tokens kept for later prompts.", cache.num_cached * BLOCK_SIZE),
    ]  # fmt: skip
    return "".join(
        f"# HELP {PREFIX}{name} {text}\n# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value:.10g}\n"
        for name, kind, text, value in rows
    )
