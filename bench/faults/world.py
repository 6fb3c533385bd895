"""The cluster under the drills: the rig's, with gates before its S3 server and within its API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from e2e_jobs import tuning_job, upload_tiny
from faults_admission import LABEL, AdmissionGate, admitting
from faults_s3 import S3Gate, serving
from rig.kube.cluster import NAMESPACE, RELEASE, Cluster, Tenant, new_cluster
from rig.kube.control_plane import Object
from rig.kube.machine import CommandFailed
from rig.waiting import NeverHappened, wait_for

from tuner_job.api.messages import DISCOVER, FINAL, EndRecord, ResultRecord, TryRecord, VerdictRecord
from tuner_job.campaign.reader import RunReader
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import read_record

TUNING_SECONDS = 600.0
"""For what a drill waits for; far more than it takes."""

SECOND = "trtfleet-second"
"""Release and namespace of a second installation."""
OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
SECOND_OPERATOR = f"system:serviceaccount:{SECOND}:{SECOND}"

T = TypeVar("T")


@dataclass
class World:
    cluster: Cluster
    s3: S3Gate
    admission: AdmissionGate
    folder: Path
    """For what failed drills leave."""
    _logs: dict[str, str] = field(default_factory=dict)
    """Operator container → its log, of those that drills ended."""

    def new_tenant(self) -> Tenant:
        """Its store lies behind the gate, and so do its Jobs and statuses. Tests read the store past the gate."""
        return self.cluster.new_tenant(
            endpoint=self.s3.endpoint, labels={"pod-security.kubernetes.io/enforce": "restricted", LABEL: "true"}
        )

    def job(self, name: str, tenant: Tenant | None = None, *, knobs: int = 3, parallelism: int = 2, warm: bool = False) -> Run:
        """A TuningJob of a tiny real model, which is not applied yet. `warm`: results of earlier jobs of the tenant may serve."""
        tenant = tenant or self.new_tenant()
        model = {"uri": upload_tiny(self.cluster, tenant, self.cluster.plane.machine.folder)}
        body = tuning_job(name, tenant, model, parallelism=parallelism, knobs=knobs)
        body["spec"]["search"]["warmStart"] = "Ledger" if warm else "None"
        body["spec"]["objective"] = {"metric": "LatencyP50", "minImprovement": "0.3"}  # which the smallest final can judge
        return Run(self, tenant, body, self.restarts())

    # the operator

    def operator_process(self) -> int:
        """Process id inside the machine, of the one operator that runs."""
        return wait_for("an operator runs", self._operator_process, seconds=120)

    def _operator_process(self) -> int | None:
        for pod in self.cluster.operator_pods():
            for status in pod["status"].get("containerStatuses", []):
                if "running" in status.get("state", {}) and (process := self.process_of(status["containerID"])):
                    return process
        return None

    def process_of(self, container_id: str) -> int | None:
        """Process id inside the machine, of a container that runs."""
        plain = container_id.removeprefix("containerd://")
        rows = [line.split() for line in self.cluster.node.ctr("tasks", "list").splitlines()]
        return next((int(row[1]) for row in rows if len(row) == 3 and row[0] == plain and row[2] == "RUNNING"), None)

    def signal(self, process: int, name: str) -> None:
        """To a process of the machine; one that is gone is no error."""
        self.cluster.plane.machine.call("sh", "-c", f"kill -{name} {process} 2>/dev/null || true")

    def crash_operator(self, process: int) -> None:
        """SIGKILL, and its pod goes too: the kubelet would let it wait longer after each crash. Its successor is awaited."""
        self.signal(process, "KILL")
        self.replace_operator()

    def replace_operator(self) -> None:
        """Another pod with another process, at once; of the present one nothing is left."""
        self.keep_logs()
        pods = [pod["metadata"]["uid"] for pod in self.cluster.operator_pods()]
        self.cluster.delete_operator_pod()
        for pod in pods:  # the kubelet may have restarted one meanwhile, and would give it time
            named = self.cluster.node.ctr("containers", "list", "--quiet", f'labels."io.kubernetes.pod.uid"=={pod}')
            for container in named.split():
                self.cluster.kill_container(container)
        self.cluster.wait_for_operator()

    def keep_logs(self) -> None:
        """Of the operators that there are; they go with their pods."""
        for path in sorted((self.cluster.plane.machine.folder / "var" / "log" / "pods").glob(f"{NAMESPACE}_*/operator/*.log")):
            self._logs[str(path)] = path.read_text(errors="replace")

    def operator_logs(self) -> str:
        """Of all operators so far."""
        self.keep_logs()
        return "\n".join(f"== {Path(path).parts[-3]}\n{text}" for path, text in self._logs.items())

    def operators_ready(self) -> bool:
        states = [each for pod in self.cluster.operator_pods() for each in pod["status"].get("containerStatuses", [])]
        return bool(states) and all(each["ready"] for each in states)

    def restarts(self) -> dict[str, int]:
        """Operator pod → how often its container was restarted."""
        return {
            pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
            for pod in self.cluster.operator_pods()
        }


@dataclass
class Run:
    """One TuningJob and what its store holds."""

    world: World
    tenant: Tenant
    body: Object
    restarts_before: dict[str, int]
    """Of the operator's pods."""
    finished: dict[str, bytes] = field(default_factory=dict)
    """Trial → its result record as it was first seen."""
    kills: int = 0
    """Workers that were killed: each may have cost one trial."""
    notes: list[str] = field(default_factory=list)
    """What was seen, for the summary."""
    _store: ObjectStore | None = None
    _readers: dict[str, RunReader] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return self.tenant.namespace

    @property
    def store(self) -> ObjectStore:
        """Past the gates."""
        self._store = self._store or self.tenant.address.open()
        return self._store

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self) -> None:
        self.world.cluster.plane.apply(self.body)

    def patch(self, spec: Mapping[str, object]) -> None:
        self.kubectl("patch", "tuningjob", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def kubectl(self, *arguments: str) -> str:
        return self.world.cluster.plane.kubectl("--namespace", self.namespace, *arguments)

    def get(self) -> Object:
        return self.world.cluster.plane.get("tuningjob", self.name, "--namespace", self.namespace)

    def listed(self, kind: str) -> list[Object]:
        """Pods or Jobs of this TuningJob."""
        selector = f"trtfleet.dev/job={self.name}"
        items: list[Object] = self.world.cluster.plane.get(kind, "--namespace", self.namespace, "--selector", selector)["items"]
        return items

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason, message; of none, three empty texts."""
        for each in self.get().get("status", {}).get("conditions", []):
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def until(self, what: str, probe: Callable[[], T | None], seconds: float = TUNING_SECONDS, *, every: float = 1.0) -> T:
        """As wait_for; an API server that is away meanwhile is waited for. In vain, it says how the job stood."""

        def patient() -> T | None:
            try:
                return probe()
            except CommandFailed:
                return None

        try:
            return wait_for(what, patient, seconds, every=every)
        except NeverHappened as error:
            raise NeverHappened(f"{error}; {self.name}: {self.standing()}") from None

    def standing(self) -> str:
        status = self.get().get("status", {})
        ready: Object = next((each for each in status.get("conditions", []) if each["type"] == "Ready"), {})
        return f"{status.get('phase')} {ready.get('reason')}: {ready.get('message')}"

    def until_ready(self) -> None:
        self.until("it is ready", lambda: self._settled() or None)

    def _settled(self) -> bool:
        """Ready for the spec as it stands."""
        body = self.get()
        status = body.get("status", {})
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", []))
        return ready and status.get("observedGeneration") == body["metadata"]["generation"]

    def until_reason(self, reason: str, kind: str = "Ready", seconds: float = TUNING_SECONDS) -> str:
        """The message that goes with it."""
        return self.until(f"{kind} says {reason}", lambda: self._message(kind, reason), seconds)

    def _message(self, kind: str, reason: str) -> str | None:
        _, said, message = self.condition(kind)
        return message or reason if said == reason else None

    def until_phase(self, *phases: str) -> str:
        return self.until(f"its phase is {' or '.join(phases)}", lambda: self._phase(phases))

    def _phase(self, phases: tuple[str, ...]) -> str | None:
        phase = self.get().get("status", {}).get("phase")
        return phase if phase in phases else None

    # its records

    def runs(self) -> list[str]:
        """Run ids, as the store has them."""
        return sorted({info.key.split("/")[1] for info in self.store.list(layout.RUNS) if info.key.endswith("/run.json")})

    def run(self, target: str = "cpu") -> str:
        """The wanted run of a target."""

        def named() -> str | None:
            for each in self.get().get("status", {}).get("targets", []):
                if each["name"] == target:
                    recent = each.get("recentRuns", [])
                    return each.get("activeRun") or (recent[0]["id"] if recent else None)
            return None

        return self.until("its run is named", named)

    def reader(self, run: str) -> RunReader:
        if run not in self._readers:
            self._readers[run] = RunReader(self.store, run)
        return self._readers[run]

    def planned(self, run: str) -> list[str]:
        """Trials of the explore rounds so far."""
        return [trial.trial for plan in self.reader(run).plans() for trial in plan.trials]

    def tries(self, run: str) -> dict[str, int]:
        """Trial → number of tries, discover and final among them."""
        counts = {}
        for trial in (DISCOVER, *self.planned(run), FINAL):
            number = 0
            while self.store.exists(layout.claim(run, trial, number + 1)):
                number += 1
            counts[trial] = number
        return counts

    def result_bytes(self, run: str, trial: str) -> bytes | None:
        """Of discover and the final the record that they are for."""
        keys = {DISCOVER: layout.discovery(run), FINAL: layout.verdict(run)}
        found = self.store.get(keys.get(trial) or layout.result(run, trial), VerdictRecord.MAX_BYTES)
        return found.data if found else None

    def convicted(self, run: str, trial: str) -> bool:
        """Whether it was given up, since it kept killing its workers."""
        result = read_record(self.store, layout.result(run, trial), ResultRecord)
        return result is not None and result.convicted

    def remember(self, run: str) -> int:
        """Keeps every result as it stands now; the drill's end compares. How many there are."""
        for trial in (DISCOVER, *self.planned(run), FINAL):
            if trial not in self.finished and (found := self.result_bytes(run, trial)) is not None:
                self.finished[trial] = found
        return len(self.finished)

    def in_hand(self, run: str) -> dict[str, str]:
        """Explore trial → worker id of the one that claimed it last, of those without a result."""
        found = {}
        for trial in self.planned(run):
            number = 0
            while self.store.exists(layout.claim(run, trial, number + 1)):
                number += 1
            if number and not self.store.exists(layout.result(run, trial)):
                claim = read_record(self.store, layout.claim(run, trial, number), TryRecord)
                assert claim is not None
                found[trial] = claim.worker_id
        return found

    def until_trial_in_hand(self, run: str, *, after: int = 1) -> tuple[str, Object]:
        """A trial that runs when at least `after` explore trials have their result, and the pod that runs it."""

        def caught() -> tuple[str, Object] | None:
            if sum(self.store.exists(layout.result(run, trial)) for trial in self.planned(run)) < after:
                return None
            pods = {pod["metadata"]["uid"]: pod for pod in self.listed("pods")}
            for trial, worker in self.in_hand(run).items():
                if worker in pods and not self.store.exists(layout.result(run, trial)):
                    return trial, pods[worker]
            return None

        return self.until("a trial is in a worker's hands", caught, every=0.1)

    def cut_off(self, run: str) -> int:
        """Workers that ended without a last beat: others noted their end. Each may have had one more trial to count."""
        ends = [read_record(self.store, info.key, EndRecord) for info in self.store.list(f"{layout.run_prefix(run)}/ends")]
        return sum(each is not None and each.cause != "stopped" for each in ends)

    def verdict(self, run: str) -> bool:
        return self.store.exists(layout.verdict(run))

    def pointers(self) -> list[str]:
        return [info.key for info in self.store.list(layout.POINTERS) if f"/{self.name}/" in info.key]


@contextmanager
def new_world(folder: Path) -> Iterator[World]:
    """A cluster with the chart installed. Raises RigUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cluster = stack.enter_context(new_cluster())
        s3 = stack.enter_context(serving(cluster.s3))
        cluster.install()
        cluster.apply_runtime()
        admission = stack.enter_context(admitting(cluster.plane))
        yield World(cluster, s3, admission, folder)


def pause(seconds: float) -> None:
    """For faults that last so long."""
    time.sleep(seconds)
