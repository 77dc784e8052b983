import pytest

from isthmus.text.durations import format_duration, parse_duration

# From the tests and documentation of Go's time.ParseDuration.
GO = {
    "0": 0.0,
    "5s": 5.0,
    "30s": 30.0,
    "1478s": 1478.0,
    "-5s": -5.0,
    "+5s": 5.0,
    "-0": 0.0,
    "+0": 0.0,
    "5.0s": 5.0,
    "5.6s": 5.6,
    "5.s": 5.0,
    ".5s": 0.5,
    "1.0040s": 1.004,
    "100.00100s": 100.001,
    "10ns": 1e-8,
    "11us": 11e-6,
    "12µs": 12e-6,
    "12μs": 12e-6,
    "13ms": 0.013,
    "14s": 14.0,
    "15m": 900.0,
    "16h": 57600.0,
    "3h30m": 12600.0,
    "10.5s4m": 250.5,
    "-2m3.4s": -123.4,
    "1h2m3s4ms5us6ns": 3723.004005006,
    "39h9m14.425s": 140954.425,
    "0.100000000000000000000h": 360.0,
}


@pytest.mark.parametrize(("text", "seconds"), GO.items())
def test_parses_what_go_parses(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    ["", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "1 s", "1s ", "5e3s", "٣s", "1h1", "--1s"],
)
def test_refuses_what_go_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)


def test_refuses_more_than_go_can_hold() -> None:
    with pytest.raises(ValueError, match="longer than"):
        parse_duration("9223372036854775808ns")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (-0.0, "0s"),
        (3600.0, "1h"),
        (5400.0, "1h30m"),
        (3601.5, "1h1.5s"),
        (25.0, "25s"),
        (0.5, "500ms"),
        (0.0015, "1.5ms"),
        (1.1e-6, "1.1µs"),
        (3e-9, "3ns"),
        (-90.0, "-1m30s"),
        (59.9999999999, "1m"),
    ],
)
def test_formats_as_people_type(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
