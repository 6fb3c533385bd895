"""A machine within this one: processes, network and mounts of its own, which vanish together.

It is a process, pid 1 of its own namespaces. When that process ends, because the machine is closed or because the test run was
killed, the kernel ends every process of the machine (pods among them), unmounts its mounts and removes its network.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import psutil
from rig.kube.binaries import CACHE, RigUnavailable, installed, require_root
from rig.waiting import wait_for

COMMAND_SECONDS = 120.0
STOP_SECONDS = 20.0
END_SECONDS = 120.0
SLOTS = 100
"""Machines that can live at the same time, each with its own addresses."""

_PREFIX = "trtfleet-machine-"
_CGROUPS = Path("/sys/fs/cgroup")


class CommandFailed(AssertionError):
    """A command ended with another code than 0. `str()` holds what it said."""


def call(*command: str | Path, stdin: str | None = None, seconds: float = COMMAND_SECONDS) -> str:
    """Standard output of a command. Raises CommandFailed."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{' '.join(words)}: not done after {seconds:g} s") from None
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(words)}: ended with {done.returncode}\n{(done.stderr or done.stdout).strip()[-4000:]}")
    return done.stdout


@dataclass
class Process:
    """A program that runs in a machine."""

    name: str
    pid: int
    """As this machine's parent sees it."""
    log: Path
    _entered: subprocess.Popen[bytes]

    @property
    def runs(self) -> bool:
        return self._entered.poll() is None

    def check(self) -> None:
        """Raises RuntimeError with the end of its log when it has ended by itself."""
        if not self.runs:
            raise RuntimeError(f"{self.name} ended with {self._entered.returncode}:\n{self.tail()}")

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def signal(self, number: int) -> None:
        if self.runs:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
                if number == signal.SIGCONT:  # `nsenter` stops itself when its child is stopped
                    os.kill(self._entered.pid, number)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, and SIGKILL when that was not enough."""
        self.signal(signal.SIGTERM)
        try:
            self._entered.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._entered.wait(STOP_SECONDS)


@dataclass
class Machine:
    """Tests reach it at `address`, and it reaches nothing but itself and `host`."""

    folder: Path
    """Of this machine alone; removed with it."""
    address: str
    host: str
    """The test's address as the machine sees it."""
    pods: str
    """Subnet for pods, which the test reaches as well."""
    cgroup: str
    """Of the node's pods, below each hierarchy's root."""
    pid: int
    processes: dict[str, Process]
    """By name, the last one started of each."""

    def command(self, *words: str | Path) -> list[str]:
        """The command that runs `words` inside."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--", *map(str, words)]

    def call(self, *words: str | Path, stdin: str | None = None, seconds: float = COMMAND_SECONDS) -> str:
        """Standard output of a command that ran inside. Raises CommandFailed."""
        return call(*self.command(*words), stdin=stdin, seconds=seconds)

    def start(self, name: str, *words: str | Path, env: Mapping[str, str] | None = None) -> Process:
        """A program inside, with its output in `<folder>/logs/<name>.log`, which is appended to when it is started again."""
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            entered = subprocess.Popen(
                self.command(*words),
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the test, which then stops it
            )
        process = Process(name, _only_child(entered, log), log, entered)
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")


@contextmanager
def new_machine() -> Iterator[Machine]:
    """Raises RigUnavailable without root."""
    require_root()
    installed("ip", "nsenter", "setpriv", "unshare")
    with ExitStack() as stack:
        slot = stack.enter_context(_slot())
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{slot}-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        processes: dict[str, Process] = {}
        stack.callback(_reap, processes)
        machine = Machine(
            folder,
            address=f"10.99.{slot}.2",
            host=f"10.99.{slot}.1",
            pods=f"10.200.{slot}.0/24",
            cgroup=f"{_PREFIX}{slot}",
            pid=stack.enter_context(_first_process()),
            processes=processes,
        )
        _private_folders(machine)
        _connect(machine, _link(slot))
        yield machine


def _reap(processes: Mapping[str, Process]) -> None:
    """The kernel has ended them with their machine."""
    for process in processes.values():
        process.kill()


@contextmanager
def _slot() -> Iterator[int]:
    """A number that no other living machine has. What a killed test run left under it is removed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for slot in range(SLOTS):
        with (CACHE / f"machine-{slot}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _sweep(slot)
            try:
                yield slot
            finally:
                _remove_cgroups(f"{_PREFIX}{slot}")
            return
    raise RigUnavailable(f"{SLOTS} machines live here already")


def _sweep(slot: int) -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{slot}-*"):
        shutil.rmtree(left, ignore_errors=True)
    _remove_cgroups(f"{_PREFIX}{slot}")
    link = Path("/sys/class/net") / _link(slot)
    wait_for(f"the kernel has removed {link.name}", lambda: not link.exists(), seconds=60)


def _link(slot: int) -> str:
    return f"trtfleet{slot}"


def cgroups(name: str) -> list[Path]:
    """The folder of this control group in every hierarchy: one under version 2, one for each controller under version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / name]
    return [root / name for root in sorted(_CGROUPS.iterdir()) if root.is_dir() and not root.is_symlink()]


def _remove_cgroups(name: str) -> None:
    """A group whose last process is just ending is busy for a moment."""
    for top in cgroups(name):
        wait_for(f"{top} is empty", partial(_remove_tree, top), seconds=30)


def _remove_tree(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
    return not top.exists()


@contextmanager
def _first_process() -> Iterator[int]:
    """Process id of pid 1 of new namespaces. It dies with the thread that called this."""
    holder = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child=KILL"),
            *(sys.executable, str(Path(__file__).with_name("init.py"))),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"up\n":
            raise RigUnavailable(f"no namespaces here: {_last_line(holder.stderr)}")
        (child,) = psutil.Process(holder.pid).children()
        try:
            yield child.pid
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()
                child.wait(END_SECONDS)  # returns when the kernel has ended all that ran inside
    finally:
        holder.kill()
        holder.communicate()


def _last_line(output: IO[bytes]) -> str:
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "unshare said nothing"


def _private_folders(machine: Machine) -> None:
    """State that programs keep at fixed places, such as /run, is this machine's own and goes with it."""
    machine.call("mount", "--make-rshared", "/")  # pods' mounts propagate inside; `unshare` has cut the tie to the outside
    machine.call("mount", "-t", "tmpfs", "tmpfs", "/run")
    for place in ("/var/lib", "/var/log"):
        own = machine.folder / place.replace("/", "", 1)
        own.mkdir(parents=True)
        machine.call("mount", "--bind", own, place)


def _connect(machine: Machine, link: str) -> None:
    """A cable of two ends between here and there. It is gone when the machine is."""
    call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(machine.pid))
    call("ip", "address", "add", f"{machine.host}/30", "dev", link)
    call("ip", "link", "set", link, "up")
    machine.call("ip", "link", "set", "lo", "up")
    machine.call("ip", "address", "add", f"{machine.address}/30", "dev", "eth0")
    machine.call("ip", "link", "set", "eth0", "up")
    machine.call("sysctl", "-qw", "net.ipv4.ip_forward=1")
    call("ip", "route", "add", machine.pods, "via", machine.address)


def _only_child(entered: subprocess.Popen[bytes], log: Path) -> int:
    """`nsenter` forks to enter a pid namespace; the program is its only child."""
    process = psutil.Process(entered.pid)

    def child() -> int | None:
        if entered.poll() is not None:
            raise RuntimeError(f"{log.stem} ended with {entered.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
        with suppress(psutil.NoSuchProcess):
            children = process.children()
            return children[0].pid if children else None
        return None

    return wait_for(f"{log.stem} starts", child, seconds=10, every=0.005)
