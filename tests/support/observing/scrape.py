"""What a process answers to a scrape."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from support.processes.service import ServiceProcess

PROCESS_LABELS = {"aggregation", "cluster", "node_type", "node_id"}


def scrape(process: ServiceProcess) -> dict[str, float]:
    """Return the values by name and own labels: `name`, or `name{label="value",…}`."""
    url = f"http://{process.ready['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = ",".join(
                f'{label}="{value}"'
                for label, value in sorted(sample.labels.items())
                if label not in PROCESS_LABELS
            )
            found[f"{sample.name}{{{own}}}" if own else sample.name] = sample.value
    return found
