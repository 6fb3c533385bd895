"""The operator dies, freezes, or is not alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, repeat

from faults_gate import Gate, Hold
from rig.kube.cluster import CREDENTIALS, NAMESPACE, RELEASE, SIGNING
from rig.kube.control_plane import Object
from rig.kube.images import SOURCE

from bench.faults.checks import check_run
from bench.faults.drill import Notes, drill, require
from bench.faults.world import SECOND, Run, World
from tuner_job.api.messages import PointerRecord
from tuner_job.store import layout
from tuner_job.store.records import read_record


@dataclass(frozen=True)
class Moment:
    """When the operator dies: while a request waits at a gate."""

    what: str
    gate: Gate
    pattern: str
    met: Callable[[], bool]
    """Whether the moment is the one that is meant."""
    after: bool = False
    """The request has been done, its answer has not come."""
    when: Callable[[], bool] = lambda: True
    """Requests pass before that."""


def kill_at(run: Run, moments: Sequence[Moment]) -> None:
    """SIGKILL at each of the moments, one after the other; each time the request is dropped and another operator takes over."""
    world = run.world
    with ExitStack() as stack:
        holds: list[Hold] = []

        def wait_at(moment: Moment) -> None:
            holds.append(stack.enter_context(moment.gate.hold(moment.pattern, after=moment.after, when=moment.when)))

        wait_at(moments[0])
        run.start()
        for place, moment in enumerate(moments):
            process = world.operator_process()
            holds[place].wait()
            world.signal(process, "KILL")
            require(moment.met(), f"the operator was not killed {moment.what}")
            world.replace_operator()
            for following in moments[place + 1 : place + 2]:  # before the next operator may go on
                wait_at(following)
            holds[place].refuse()


@drill(alone=True)
def killed_between_the_first_steps(world: World) -> Notes:
    """operator killed, four times
    | run.json is not written; it is written, the answer has not come; the discover Job is asked for and not created; the Job
      is there, the status does not tell
    | Ready; one run, each Job created once
    """
    run = world.job("first-steps", knobs=2)
    record = rf"^PUT .*/{run.namespace}/runs/[^/]+/run\.json$"
    status = rf"^UPDATE tuningjobs/status {run.namespace}/"

    def jobs() -> bool:
        return bool(run.listed("jobs"))

    kill_at(
        run,
        [
            Moment("before the run record", world.s3, record, lambda: not run.runs()),
            Moment("after the run record", world.s3, record, lambda: len(run.runs()) == 1 and not jobs(), after=True),
            Moment(
                "between run record and Job",
                world.admission,
                rf"^CREATE jobs {run.namespace}/",
                lambda: len(run.runs()) == 1 and not jobs(),
            ),
            Moment("between Job and status", world.admission, status, jobs, when=jobs),
        ],
    )
    check_run(run)
    require(len(run.runs()) == 1, f"runs: {run.runs()}")
    return [*run.notes, "4 operators killed", _jobs_created(world, run)]


@drill(alone=True)
def killed_between_the_last_steps(world: World) -> Notes:
    """operator killed, four times
    | the verdict is there and nothing else; the manifest is there, the attestation is not; the attestation is there, the
      pointer is not; the pointer has moved, the status does not say so
    | Ready; one manifest, the pointer has moved once
    """
    run = world.job("last-steps", knobs=2)

    def there(prefix: str) -> int:
        return len([*run.store.list(prefix)])

    def put(prefix: str) -> str:
        return rf"^PUT .*/{run.namespace}/{prefix}/"

    kill_at(
        run,
        [
            Moment(
                "between verdict and manifest",
                world.s3,
                put("manifests"),
                lambda: run.verdict(run.runs()[0]) and not there(layout.MANIFESTS),
            ),
            Moment(
                "between manifest and attestation",
                world.s3,
                put("attestations"),
                lambda: there(layout.MANIFESTS) == 1 and not there(layout.ATTESTATIONS),
            ),
            Moment(
                "between attestation and pointer",
                world.s3,
                put("pointers"),
                lambda: there(layout.ATTESTATIONS) == 1 and not run.pointers(),
            ),
            Moment(
                "between pointer and status",
                world.admission,
                rf"^UPDATE tuningjobs/status {run.namespace}/",
                lambda: bool(run.pointers()) and run.condition("Published")[0] != "True",
                when=lambda: bool(run.pointers()),
            ),
        ],
    )
    check_run(run)
    require(there(layout.MANIFESTS) == 1, "more than one manifest")
    return [*run.notes, "4 operators killed", "1 manifest", _generation(run)]


def _jobs_created(world: World, run: Run) -> str:
    """Of the operator, as the audit log tells. Raises AssertionError for more than one of each stage."""
    made = [
        request.name
        for request in world.cluster.plane.requests()
        if (request.verb, request.what, request.namespace, request.code) == ("create", "batch/jobs", run.namespace, 201)
    ]
    require(len(made) == 3, f"Jobs created: {made}")
    return "3 Jobs created (discover, explore, final)"


@drill(alone=True)
def killed_in_every_stage(world: World) -> Notes:
    """operator killed
    | three times: while workers discover, while they explore, while they prove
    | Ready; workers do not notice
    """
    run = world.job("every-stage", knobs=3)
    run.start()
    for phase in ("Discovering", "Exploring", "Proving"):
        run.until_phase(phase)
        run.remember(run.run())
        world.crash_operator(world.operator_process())
    check_run(run)
    return run.notes


@drill(alone=True)
def pointer_of_a_dead_operator(world: World) -> Notes:
    """operator killed; its request arrives late
    | its swap of the pointer is on the way, and gets there after the next operator has published
    | Ready; the late swap changes nothing
    """
    run = world.job("late-pointer", knobs=2)
    process = world.operator_process()
    with world.s3.hold(rf"^PUT .*/{run.namespace}/pointers/", when=only_first(), drops_the_dead=False) as hold:
        run.start()
        hold.wait()
        world.signal(process, "KILL")
        world.replace_operator()
        run.until_ready()
        hold.let_go()
    check_run(run)
    return [*run.notes, _generation(run)]


def only_first() -> Callable[[], bool]:
    """Yes to the first request that asks, no to all others."""
    answers = chain([True], repeat(False))
    return lambda: next(answers)


def _generation(run: Run) -> str:
    (key,) = run.pointers()
    pointer = read_record(run.store, key, PointerRecord)
    require(pointer is not None and pointer.generation == 1, f"the pointer moved {pointer and pointer.generation} times")
    return "pointer moved once"


@drill(alone=True)
def lease_stolen(world: World) -> Notes:
    """Lease stolen
    | somebody else writes himself into it while workers explore
    | the operator ends at once, waits until the thief's time has run out, and goes on; Ready
    """
    run = world.job("stolen", knobs=3)
    run.start()
    run.until_phase("Exploring")
    plane = world.cluster.plane
    before = sum(world.restarts().values())
    thief = {"spec": {"holderIdentity": "thief"}}
    plane.kubectl("patch", "lease", RELEASE, "--namespace", NAMESPACE, "--type=merge", "--patch", json.dumps(thief))

    def ended() -> bool | None:
        return True if sum(world.restarts().values()) > before else None

    run.until("the operator has ended", ended, seconds=60)

    def back() -> str | None:
        holder = plane.get("lease", RELEASE, "--namespace", NAMESPACE)["spec"].get("holderIdentity", "")
        return holder if holder not in ("", "thief") else None

    run.until("an operator holds the Lease again", back, seconds=120)
    check_run(run, most_crashes=1)
    said = [line for line in world.operator_logs().splitlines() if '"critical"' in line]
    require(any("taken by thief" in line for line in said), f"the operator did not say why it ended: {said}")
    world.replace_operator()
    return [*run.notes, "1 restart"]


@drill(alone=True)
def two_operators(world: World) -> Notes:
    """two operators at once
    | a second installation with a Lease of its own works on the same TuningJobs all the time
    | Ready; what is done twice harms nothing
    """
    with second_operator(world):
        run = world.job("two", knobs=3)
        run.start()
        check_run(run)
        _generation(run)
        writers = {
            request.user
            for request in world.cluster.plane.requests()
            if request.namespace == run.namespace and request.what == "trtfleet.dev/tuningjobs/status"
        }
    require(len(writers) == 2, f"only {writers} wrote the status")
    return [*run.notes, "both operators wrote the status", "pointer moved once"]


@contextmanager
def second_operator(world: World) -> Iterator[None]:
    """Another release in a namespace of its own, with the same name in stores and the same key."""
    cluster, plane = world.cluster, world.cluster.plane
    plane.kubectl("create", "namespace", SECOND)
    for name in (CREDENTIALS, SIGNING):
        secret = plane.get("secret", name, "--namespace", NAMESPACE)
        copy: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": secret["data"]}
        plane.apply(copy, namespace=SECOND)
    values = json.loads(cluster.helm("get", "values", RELEASE, "--namespace", NAMESPACE, "--output=json"))
    cluster.helm(
        *("install", SECOND, SOURCE / "charts" / "trtfleet", "--namespace", SECOND, "--values=-"),
        *("--set", "crds.enabled=false", "--set", "rbac.aggregate=false", "--wait", "--timeout=180s"),
        stdin=json.dumps(values),
    )
    try:
        yield
    finally:
        plane.kubectl("scale", f"deployment/{SECOND}", "--namespace", SECOND, "--replicas=0")  # it must not outlive its rights
        plane.kubectl("wait", "pods", "--all", "--for=delete", "--namespace", SECOND, "--timeout=90s")
        cluster.helm("uninstall", SECOND, "--namespace", SECOND, "--wait", "--timeout=120s")
        plane.kubectl("delete", "namespace", SECOND, "--wait=false")


@drill(alone=True)
def leader_frozen(world: World) -> Notes:
    """the leader of two freezes (SIGSTOP) and wakes again
    | its swap of the pointer is under way; it wakes after the standby has published
    | Ready; the woken one ends by itself, the pointer has moved once
    """
    cluster = world.cluster
    cluster.install({"replicas": 2})
    try:
        run = world.job("frozen", knobs=2)
        with world.s3.hold(rf"^PUT .*/{run.namespace}/pointers/", when=only_first(), drops_the_dead=False) as hold:
            run.start()
            hold.wait()
            leader = _leader(world)
            process = _process_of_pod(world, leader)
            world.signal(process, "STOP")
            run.until_ready()
            hold.let_go()
            world.signal(process, "CONT")

        def restarted() -> bool | None:
            return True if world.restarts().get(leader, 0) >= 1 else None

        run.until("the woken leader has ended", restarted, seconds=90)
        check_run(run, most_crashes=1)
        note = _generation(run)
        require(_leader(world) != leader, "the frozen one leads again")
    finally:
        cluster.install()
        world.replace_operator()
    return [*run.notes, note, "the woken leader ended by itself"]


def _leader(world: World) -> str:
    """Name of the pod that holds the Lease."""
    lease = world.cluster.plane.get("lease", RELEASE, "--namespace", NAMESPACE)
    return str(lease["spec"]["holderIdentity"].rpartition("_")[0])


def _process_of_pod(world: World, name: str) -> int:
    pod = world.cluster.plane.get("pod", name, "--namespace", NAMESPACE)
    process = world.process_of(pod["status"]["containerStatuses"][0]["containerID"])
    assert process is not None, f"pod {name} does not run"
    return process
