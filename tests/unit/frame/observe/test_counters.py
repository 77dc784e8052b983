"""Histograms count as Prometheus's own do; families render to text that parses back."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as TheirHistogram
from prometheus_client.parser import text_string_to_metric_families

from isthmus.frame.observe.counters import Families, Histogram, counter, histogram, one

BOUNDS = (0.001, 0.1, 2.5)


def test_buckets_agree_with_prometheus_clients() -> None:
    registry = CollectorRegistry()
    theirs = TheirHistogram("x", "x", buckets=BOUNDS, registry=registry)
    ours = Histogram(BOUNDS)
    for value in (0.0, 0.001, 0.0010001, 0.1, 0.5, 2.5, 2.6, 1e9):
        theirs.observe(value)
        ours.observe(value)
    for name, count in ours.cumulative():
        label = "+Inf" if name == "+Inf" else repr(float(name))
        assert registry.get_sample_value("x_bucket", {"le": label}) == count
    assert ours.count == registry.get_sample_value("x_count") == 8
    assert ours.total == registry.get_sample_value("x_sum")


def test_a_counter_without_total_keeps_its_name_in_the_header() -> None:
    families = Families(
        [
            counter("dial_failure_count", "As Go names it.", one(lambda: 3)),
            counter("x_total", "As it should be.", one(lambda: 4)),
        ]
    )
    lines = families.render().decode().splitlines()
    assert "# TYPE dial_failure_count counter" in lines
    assert "# HELP dial_failure_count As Go names it." in lines
    assert "dial_failure_count 3.0" in lines
    assert "# TYPE x_total counter" in lines
    assert "x_total 4.0" in lines


def test_two_programs_in_one_process_do_not_mix() -> None:
    mine, yours = Histogram(BOUNDS), Histogram(BOUNDS)
    first = Families([histogram("d_seconds", "d", mine)])
    second = Families([histogram("d_seconds", "d", yours)])
    mine.observe(1.0)

    def count(families: Families) -> float:
        parsed = {f.name: f for f in text_string_to_metric_families(families.render().decode())}
        return next(s.value for s in parsed["d_seconds"].samples if s.name == "d_seconds_count")

    assert (count(first), count(second)) == (1.0, 0.0)


def test_the_process_itself_is_measured() -> None:
    assert b"process_open_fds " in Families([]).render()
