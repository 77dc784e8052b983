"""Metrics of several processes as those of one."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from isthmus.observe.metrics import ServerMetrics
from isthmus.workers import exposition

ONE = b"""\
# HELP a_total Some.
# TYPE a_total counter
a_total{x="1"} 2.0
a_total{x="two words } # {"} 3.0
# HELP open_now Now.
# TYPE open_now gauge
open_now 4.0
# HELP it_draining Is it.
# TYPE it_draining gauge
it_draining 1.0
# HELP process_start_time_seconds When.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.0e+09
"""
OTHER = ONE.replace(b" 2.0", b" 5.0").replace(b"1.0e+09", b"2.0e+09") + (
    b'# HELP b_total Only here.\n# TYPE b_total counter\nb_total{le="+Inf"} +Inf\n'
)


def samples(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_what_is_read_is_written_again() -> None:
    assert samples(exposition.write(exposition.read(ONE))) == samples(ONE)


def test_counters_add_up_and_gauges_by_kind() -> None:
    total = samples(exposition.write(exposition.summed(map(exposition.read, (ONE, OTHER)))))
    assert total == {
        'a_total{x="1"}': 7.0,
        'a_total{x="two words } # {"}': 6.0,
        "open_now": 8.0,
        "it_draining": 1.0,
        "process_start_time_seconds": 1e9,
        'b_total{le="+Inf"}': float("inf"),
    }


def test_of_a_process_that_is_gone_only_what_it_counted_stays() -> None:
    gone: exposition.Exposition = {}
    exposition.add(gone, exposition.read(ONE), only_counts=True)
    exposition.add(gone, exposition.read(ONE), only_counts=True)
    total = exposition.read(ONE)
    exposition.add_gone(total, gone)
    found = samples(exposition.write(total))
    assert found['a_total{x="1"}'] == 6.0
    assert found["open_now"] == 4.0


def test_a_counter_that_nobody_has_any_more_stays() -> None:
    gone: exposition.Exposition = {}
    exposition.add(gone, exposition.read(OTHER), only_counts=True)
    total = exposition.read(ONE)
    exposition.add_gone(total, gone)
    assert b"# TYPE b_total counter" in exposition.write(total)


def test_a_servers_own_text_goes_through_both_formats() -> None:
    metrics = ServerMetrics()
    metrics.dial_succeeded(0.01, "connection-1")
    plain, open_text = metrics.render(), metrics.render_open()
    twice = exposition.write(exposition.summed(map(exposition.read, (plain, plain))))
    name = "konnectivity_network_proxy_server_dial_duration_seconds_count"
    assert samples(twice)[name] == 2.0
    assert list(parse(twice.decode()))
    gone: exposition.Exposition = {}
    exposition.add(gone, exposition.read(plain), only_counts=True)
    total = exposition.summed(map(exposition.read, (open_text, open_text)))
    exposition.add_gone(total, gone)
    written = exposition.write(total, open_metrics=True).decode()
    assert 'connection_id="connection-1"' in written
    parsed = parse_open(written)  # type: ignore[no-untyped-call]  # theirs has none
    families = {family.name: family for family in parsed}
    (count,) = [
        sample.value
        for sample in families[name.removesuffix("_count")].samples
        if sample.name == name
    ]
    assert count == 3.0
