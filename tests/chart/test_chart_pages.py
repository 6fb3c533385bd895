"""docs/install.md and examples/cluster say what works: commands are run, objects validated."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from chart_cluster import Cluster
from chart_helm import REQUIRED, ROOT, Helm, parsed
from rig.kube.fixtures import BUILD_TIMEOUT

from tuner_job.api.documents import parse_resource
from tuner_job.api.runtime import TunerRuntime
from tuner_job.api.tuningjob import TuningJob

PAGE = (ROOT / "docs" / "install.md").read_text()
EXAMPLES = sorted((ROOT / "examples" / "cluster").glob("*.yaml"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("shell") for line in block.replace("\\\n", " ").splitlines()]

ELSEWHERE = ("docker build", "kubectl --namespace trtfleet-system rollout status", "kubectl --namespace vision wait tuningjob/")
"""What needs an image, or nodes: `make e2e` builds both and waits for both."""


@pytest.mark.slow
@pytest.mark.timeout(BUILD_TIMEOUT)
def test_the_pages_commands_work_in_their_order(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plane.kubectl("delete", "namespace", "vision", "trtfleet-system", "--wait")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").symlink_to(cluster.helm.binary)
    (programs / "kubectl").symlink_to(cluster.plane.binaries / "kubectl")
    for name in ("charts", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    env = cluster.helm.environment | {"PATH": f"{programs}:/usr/bin:/bin"}
    run = [command for command in COMMANDS if not command.startswith(ELSEWHERE)]
    assert len(run) > 10
    for command in run:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.endswith("> trtfleet.pem"):
            assert (tmp_path / "trtfleet.pem").read_text().startswith("-----BEGIN PUBLIC KEY-----")
    assert cluster.plane.get("crd")["items"] == []


def test_commands_that_run_elsewhere_are_still_on_the_page() -> None:
    for start in ELSEWHERE:
        assert any(command.startswith(start) for command in COMMANDS), start


def test_what_the_page_shows_is_valid(helm: Helm) -> None:
    values, policy = (yaml.safe_load(block) for block in blocks("yaml"))
    rendered = helm.render(values)
    assert [each["metadata"]["namespace"] for each in rendered.of("ServiceAccount")] == ["trtfleet-system", "vision"]
    workers = policy["spec"]["podSelector"]["matchLabels"]
    assert workers == {"app.kubernetes.io/name": "trtfleet-worker"}
    ours = helm.render({"networkPolicy": {"enabled": True}}).one("NetworkPolicy")["spec"]
    assert policy["spec"]["egress"][0] == ours["egress"][0]


def test_the_page_names_values_and_settings_that_exist() -> None:
    values = yaml.safe_load((ROOT / "charts" / "trtfleet" / "values.yaml").read_text())
    named = {each for each in re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)`", PAGE) if each.split(".")[0] in values}
    named |= {each for command in COMMANDS for each in re.findall(r"--set '?([a-zA-Z.]+)=", command)}
    assert len(named) > 8
    for dotted in named:
        node = values
        for part in dotted.split("."):
            assert part in node, dotted
            node = node[part]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_reads_as_the_models_want_it(path: Path) -> None:
    for each in parsed(path.read_text()):
        if each["apiVersion"].startswith("trtfleet.dev/"):
            parse_resource(each, path.name)
        else:
            assert each["kind"] in ("Namespace", "Secret", "Pod")


def test_the_examples_fit_together() -> None:
    objects = [each for path in EXAMPLES for each in parsed(path.read_text())]
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    secrets = {(each["metadata"]["name"], each["metadata"]["namespace"]) for each in objects if each["kind"] == "Secret"}
    (store,) = (each for each in objects if each["kind"] == "ArtifactStore")
    credentials = store["spec"]["credentials"]["secret"]
    assert secrets == {(credentials["operatorSecretName"], "trtfleet-system"), (credentials["tenantSecretName"], "vision")}
    assert {each["name"] for each in store["spec"]["allowedNamespaces"]} == {"vision"}
    channels = {
        each["metadata"]["name"]: each["spec"]["runtimeRef"]["name"] for each in objects if each["kind"] == "TunerChannel"
    }
    assert {("TunerRuntime", name) for name in channels.values()} <= names
    for raw in objects:
        if raw["kind"] != "TuningJob":
            continue
        job = parse_resource(raw, "example")
        assert isinstance(job, TuningJob)
        assert raw["metadata"]["namespace"] == "vision"
        assert ("ArtifactStore", job.spec.store_ref.name) in names
        assert {each.channel_ref.name for each in job.spec.targets if each.channel_ref} <= channels.keys()


def test_the_example_runtime_is_of_the_version_that_the_worker_image_locks() -> None:
    lock = (ROOT / "requirements" / "worker.txt").read_text()
    locked = re.search(r"^onnxruntime==(\S+)", lock, re.MULTILINE)
    assert locked is not None
    for each in parsed((ROOT / "examples" / "cluster" / "runtime.yaml").read_text()):
        runtime = parse_resource(each, "runtime.yaml")
        if isinstance(runtime, TunerRuntime):
            assert runtime.spec.version == locked[1]
            assert runtime.name == f"onnxruntime-{locked[1]}"


def test_the_install_command_gives_all_that_is_required(helm: Helm) -> None:
    (install,) = (command for command in COMMANDS if command.startswith("helm install"))
    given = {word.partition("=")[0] for word in shlex.split(install) if "=" in word}
    assert {"clusterName", "image.repository", "signing.create"} <= given
    assert REQUIRED.keys() == {name.split(".")[0] for name in given - {"stores"}}
