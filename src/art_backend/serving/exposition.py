"""``/metrics``: what the service does, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from art_backend.service import Service
from art_backend.serving.meter import MAX_AGE


class ServiceCollector(Collector):
    """Reads the service when it is asked; nothing is kept twice."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._engines()
        yield from self._models()
        up = GaugeMetricFamily("art_process_up", "Whether a child process is alive.", labels=["process"])
        for process in self._service.health().processes:
            up.add_metric([process.name], float(process.state in ("ready", "paused")))
        yield up

    def _engines(self) -> Iterator[Metric]:
        seconds = CounterMetricFamily(
            "art_engine_seconds",
            "Time since the first call: busy with calls, idle waiting for environments, paused for training.",
            labels=["engine", "state"],
        )
        calls = GaugeMetricFamily("art_engine_calls", "Model calls in the engine.", labels=["engine"])
        held = GaugeMetricFamily("art_engine_held_calls", "Model calls that wait for new weights.", labels=["engine"])
        for name, meter in self._service.engines.meters():
            spent = meter.read()
            for state, value in (("busy", spent.busy_s), ("idle", spent.idle_s), ("paused", spent.paused_s)):
                seconds.add_metric([name, state], value)
            calls.add_metric([name], meter.calls)
            held.add_metric([name], meter.held)
        yield from (seconds, calls, held)
        yield from self._replicas()

    def _replicas(self) -> Iterator[Metric]:
        labels = ["engine", "replica"]
        calls = GaugeMetricFamily("art_replica_calls", "Model calls that a replica is answering.", labels=labels)
        rollouts = GaugeMetricFamily("art_replica_rollouts", "Rollouts routed to the replica.", labels=labels)
        answers = CounterMetricFamily("art_replica_answers", "Model calls by outcome.", labels=[*labels, "outcome"])
        restarts = CounterMetricFamily(
            "art_replica_restarts", "Times the replica died and was restarted.", labels=labels
        )
        for engine, member in self._service.engines.members():
            if not member.label:  # the only one: what the engine does is what it does
                continue
            own = [engine, member.label]
            calls.add_metric(own, member.calls)
            rollouts.add_metric(own, member.rollouts)
            answers.add_metric([*own, "answered"], member.answered)
            answers.add_metric([*own, "failed"], member.failed)
            restarts.add_metric(own, member.restarts)
        yield from (calls, rollouts, answers, restarts)

    def _models(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("art_policy_version", "Policy version being served.", labels=["project", "model"])
        staleness = HistogramMetricFamily(
            "art_trained_token_staleness",
            "Trained tokens by the policy versions between their sampling and their training.",
            labels=["project", "model"],
        )
        for policy in self._service.served():
            labels = [policy.project, policy.name]
            version.add_metric(labels, policy.step)
            staleness.add_metric(labels, _buckets(policy.ages), sum(a * n for a, n in policy.ages.items()))
        yield from (version, staleness)


def build_exposition(service: Service, route_class: type[APIRoute]) -> APIRouter:
    """Return the router of ``/metrics``.

    Args:
        route_class: Lets only the service's key pass, as metrics hold the names of all models.
    """
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    router = APIRouter(tags=["service"], route_class=route_class)

    @router.get("/metrics")
    async def get_metrics() -> Response:
        """Utilisation, queues, versions and staleness, for Prometheus."""
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router


def _buckets(ages: Counter[int]) -> list[tuple[str, float]]:
    """Cumulative counts, as the format demands."""
    bounds = [(str(age), sum(n for a, n in ages.items() if a <= age)) for age in range(MAX_AGE)]
    return [*bounds, ("+Inf", ages.total())]
