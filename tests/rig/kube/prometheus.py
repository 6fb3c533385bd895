"""A real Prometheus that scrapes the operator and answers queries."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from dataclasses import dataclass

import yaml
from rig.kube import audit
from rig.kube.binaries import installed
from rig.kube.control_plane import ControlPlane
from rig.kube.object_store import wait_until_listening

PORT = 9090
SCRAPE_SECONDS = 2


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, promql: str) -> list[dict[str, object]]:
        """Samples of an instant query, each with `metric` (labels) and `value` (time, text)."""
        words = urllib.parse.urlencode({"query": promql})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{words}", timeout=10) as answer:
            found = json.load(answer)
        result: list[dict[str, object]] = found["data"]["result"]
        return result

    def value(self, promql: str) -> float | None:
        """Of a query with one sample; None when it has none."""
        samples = self.query(promql)
        if not samples:
            return None
        assert len(samples) == 1, f"{promql}: {len(samples)} samples"
        value = samples[0]["value"]
        assert isinstance(value, list)
        return float(value[1])


def start_prometheus(plane: ControlPlane, *, namespace: str, service: str, port_name: str) -> Prometheus:
    """Scrapes a Service through the API server, since Debian's build cannot discover pods. It ends with the plane's machine."""
    installed("prometheus")
    machine, authority = plane.machine, plane.authority
    client = authority.client(audit.PROMETHEUS, "system:masters")
    config = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s"},
        "scrape_configs": [
            {
                "job_name": "trtfleet",
                "scheme": "https",
                "metrics_path": f"/api/v1/namespaces/{namespace}/services/{service}:{port_name}/proxy/metrics",
                "static_configs": [{"targets": [plane.server.removeprefix("https://")]}],
                "tls_config": {
                    "ca_file": str(authority.certificate),
                    "cert_file": str(client.certificate),
                    "key_file": str(client.key),
                },
            }
        ],
    }
    file = machine.folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    process = machine.start(
        "prometheus",
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={machine.folder / 'prometheus'}",
        f"--web.listen-address={machine.address}:{PORT}",
        "--log.level=warn",
    )
    wait_until_listening(process, machine.address, PORT)
    return Prometheus(f"http://{machine.address}:{PORT}")
