"""The store's numbers in Prometheus' form.

On the straight line this stands between ``service.store`` and ``service.api.health``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from service.store import Numbers

PREFIX = "gradmatrix_"


def text(numbers: Numbers, now: datetime) -> bytes:
    """The page that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(list(families(numbers, now))))
    return generate_latest(registry)


class _Once(Collector):
    """Metrics that were made already."""

    def __init__(self, made: list[Metric]) -> None:
        self._made = made

    def collect(self) -> Iterator[Metric]:
        yield from self._made


def families(numbers: Numbers, now: datetime) -> Iterator[Metric]:
    """Every metric, with its labels."""
    waiting = _gauge("jobs_queued", "Jobs that wait", "world_size")
    oldest = _gauge("queue_age_seconds", "How long the oldest of the jobs that wait has waited", "world_size")
    for size, (count, since) in numbers.queued.items():
        waiting.add_metric([str(size)], count)
        oldest.add_metric([str(size)], max((now - since).total_seconds(), 0.0))
    yield from (waiting, oldest)
    yield _filled(_gauge("jobs", "Jobs by their state", "state"), numbers.jobs)
    yield _filled(_gauge("submissions", "Submissions by their state", "state"), numbers.submissions)
    devices = _gauge("devices", "Devices that a host leases out", "host")
    leased = _gauge("devices_leased", "Devices in use", "host")
    seen = _gauge("host_seen_seconds", "Since when a host was not seen", "host")
    for host, (number, used, at) in numbers.hosts.items():
        devices.add_metric([host], number)
        leased.add_metric([host], used)
        seen.add_metric([host], max((now - at).total_seconds(), 0.0))
    yield from (devices, leased, seen)
    yield _filled(_gauge("devices_sick", "Devices that get no job", "host"), numbers.sick)
    yield _filled(_counter("results", "Answers by their verdict as they came in", "verdict"), numbers.verdicts)
    cases = SummaryMetricFamily(PREFIX + "case_seconds", "What a cell took in its ranks", labels=["family", "mode"])
    for (family, mode), (count, seconds) in numbers.cases.items():
        cases.add_metric([family, mode], count, seconds)
    attempts = SummaryMetricFamily(PREFIX + "attempt_seconds", "What an execution of a job took", labels=["ended"])
    for state, (count, seconds) in numbers.attempts.items():
        attempts.add_metric([state], count, seconds)
    yield from (cases, attempts)
    yield _filled(_counter("reconciler_acts", "What the reconciler put right", "act"), numbers.acts)


def _gauge(name: str, what: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, what, labels=[label])


def _counter(name: str, what: str, label: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, what, labels=[label])


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: dict[str, int]) -> Metric:
    for label, value in sorted(values.items()):
        family.add_metric([label], value)
    return family
