"""Reading numbers out of the Prometheus text of a program."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Metrics:
    """The samples of one /metrics; names are given by their ends, as programs prefix their own."""

    def __init__(self, text: str) -> None:
        """Text that cannot be read has no samples."""
        self._samples: list[Sample] = []
        try:
            for family in text_string_to_metric_families(text):
                self._samples += family.samples
        except ValueError:
            self._samples = []

    def total(self, suffix: str, **labels: str) -> float:
        """The sum of all samples of isthmus whose name ends so, and that have these labels."""
        return sum(sample.value for sample in self._matching(suffix, labels))

    def by(self, label: str, suffix: str) -> dict[str, float]:
        """The samples of isthmus whose name ends so, by the value of a label."""
        found: dict[str, float] = {}
        for sample in self._matching(suffix, {}):
            value = sample.labels.get(label, "")
            found[value] = found.get(value, 0.0) + sample.value
        return found

    def _matching(self, suffix: str, labels: dict[str, str]) -> Iterator[Sample]:
        for sample in self._samples:
            ours = sample.name.startswith("isthmus_") and sample.name.endswith(suffix)
            if ours and labels.items() <= sample.labels.items():
                yield sample
