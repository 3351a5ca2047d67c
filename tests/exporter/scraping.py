"""Parses a page of metrics as Prometheus does."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Scrape:
    """Samples by metric: labels and value."""

    samples: dict[str, list[tuple[dict[str, str], float]]]
    kinds: dict[str, str]

    def values(self, metric: str, **labels: str) -> list[float]:
        """Values of the metric's samples that have these labels."""
        return [value for sample_labels, value in self.samples.get(metric, []) if labels.items() <= sample_labels.items()]

    def value(self, metric: str, **labels: str) -> float:
        """Value of the only sample that has these labels."""
        (value,) = self.values(metric, **labels)
        return value

    def pods(self, metric: str, **labels: str) -> list[str | None]:
        return [
            sample_labels.get("pod_name") for sample_labels, _ in self.samples.get(metric, []) if labels.items() <= sample_labels.items()
        ]


def scrape(page: bytes | str) -> Scrape:
    """Fail if the lines of a metric are not adjacent, or a sample occurs twice."""
    text = page.decode() if isinstance(page, bytes) else page
    families = list(text_string_to_metric_families(text))
    # The parser accepts these, but Prometheus does not.
    names = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return Scrape(samples, {family.name: family.type for family in families})
