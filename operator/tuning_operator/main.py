"""The operator's process: `trtfleet-operator --config FILE`.

One replica works, the others stand by for the Lease. Whatever ends unexpectedly ends the process: a fresh one starts from live
objects and the store alone, so nothing is repaired in place.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, NoReturn

from tuner_job import __version__
from tuner_job.api.base import InputError
from tuning_operator import log as lines
from tuning_operator.catalog import KINDS, Catalog
from tuning_operator.cluster import ClusterStatus
from tuning_operator.config import OperatorConfig, load
from tuning_operator.controller import Controller
from tuning_operator.kube.api import TUNING_JOBS, Forbidden, KubeError
from tuning_operator.kube.client import KubeClient, NotInstalled, open_client
from tuning_operator.kube.events import EventRecorder
from tuning_operator.kube.lease import Elector, LeaseLost
from tuning_operator.metrics import Metrics
from tuning_operator.probes import LoopLag, Probes
from tuning_operator.queue import WorkQueue
from tuning_operator.reconcile.act import Actor
from tuning_operator.reconcile.gather import Gatherer
from tuning_operator.reconcile.memory import Memory
from tuning_operator.records.mirror import Mirror
from tuning_operator.records.publisher import Publisher
from tuning_operator.records.stores import Stores
from tuning_operator.watch import Watch, WatchEnded

RETRY_SECONDS = 2.0
"""Between two tries to reach the API server at the start."""

WIND_UP_SECONDS = 18.0
"""For all that follows the last look: watch, Lease, connections. After that the process ends as it is."""

log = logging.getLogger("trtfleet.main")


class Exit(IntEnum):
    """Why the process ended; docs/operations.md says what to do."""

    STOPPED = 0
    FAILED = 1
    UNUSABLE = 2  # as configured, or on this cluster


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Never returns, and never waits for a thread that hangs in a store."""
    arguments = _parse(argv)
    try:
        config = load(arguments.config)
    except InputError as error:
        sys.stderr.write(f"trtfleet-operator: {error}\n")
        _end(Exit.UNUSABLE)
    lines.set_up(config.log_level)
    try:
        code = asyncio.new_event_loop().run_until_complete(_live(config, arguments.kubeconfig))
    except (InputError, NotInstalled, Forbidden) as error:
        log.critical("%s: %s", error.reason, error)
        code = Exit.UNUSABLE
    except Exception:
        log.critical("internal error", exc_info=True)
        code = Exit.FAILED
    _end(code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trtfleet-operator", description="Tunes what the TuningJobs of a cluster ask for.")
    parser.add_argument("--version", action="version", version=f"trtfleet-operator {__version__}")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings, as YAML")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="how to reach the cluster from outside of it")
    return parser.parse_args(argv)


def _end(code: Exit) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


async def _live(config: OperatorConfig, kubeconfig: Path | None) -> Exit:
    return await Operator(config, kubeconfig).run()


class Operator:
    """One life of the process."""

    def __init__(self, config: OperatorConfig, kubeconfig: Path | None) -> None:
        self._config = config
        self._kubeconfig = kubeconfig
        self._metrics = Metrics()
        self._lag = LoopLag(self._metrics.loop_lag)
        self._catalog: Catalog | None = None
        self._controller: Controller | None = None
        self._state: Literal["starting", "standing by", "leading", "stopping"] = "starting"
        self._told_to_stop = asyncio.Event()

    async def run(self) -> Exit:
        """Work until SIGTERM or SIGINT. Raises InputError, NotInstalled or Forbidden when it can never work like this."""
        config = self._config
        self._heed_signals()
        async with AsyncExitStack() as stack:
            ticking = asyncio.create_task(self._lag.run(), name="loop lag")
            stack.callback(ticking.cancel)
            try:
                port = await stack.enter_async_context(self._probes().serving(config.bind_address, config.port))
            except OSError as error:
                raise InputError(f"port {config.port}: {error.strerror}; choose another by `port`") from None
            log.info("trtfleet-operator %s, cluster %s, probes and metrics on port %d", __version__, config.cluster, port)
            api = await stack.enter_async_context(open_client(self._kubeconfig, self._metrics.request))
            host = socket.gethostname()
            elector = Elector(
                api,
                namespace=config.operator_namespace,
                name=config.lease_name,
                identity=f"{host}_{secrets.token_hex(4)}",
                lease_seconds=config.lease_seconds,
            )
            if not await self._unless_stopped(_reach(api)):
                return Exit.STOPPED
            self._state = "standing by"
            if not await self._unless_stopped(elector.acquire()):
                await elector.release()  # it may have become ours in this very moment
                return Exit.STOPPED
            await self._lead(api, elector, EventRecorder(api, instance=host), ticking)
        return Exit.STOPPED

    async def _lead(self, api: KubeClient, elector: Elector, recorder: EventRecorder, ticking: asyncio.Task[None]) -> None:
        """Returns when told to stop, in order. Ends the process at once when a part ends before, or the Lease is lost."""
        config, metrics = self._config, self._metrics
        self._state = "leading"
        metrics.leader.set(1)
        queue = WorkQueue(waited=metrics.latency.observe)
        catalog = self._catalog = Catalog(api)
        stores, memory = Stores(config), Memory()
        gatherer = Gatherer(config, api, catalog, stores, Mirror(), memory)
        actor = Actor(config, api, catalog, stores, Publisher(config.signing_key), memory)
        controller = self._controller = Controller(
            config, api, queue, catalog, gatherer, actor, recorder, metrics, ClusterStatus(api, catalog, stores)
        )
        watch, unwatch = Watch(config, self._kubeconfig, controller, catalog, metrics.event), asyncio.Event()
        holding = asyncio.create_task(elector.hold(), name="lease")
        working = asyncio.create_task(controller.run(), name="controller")
        watching = asyncio.create_task(watch.run(unwatch), name="watch")
        for part in (ticking, holding, working, watching):
            part.add_done_callback(self._part_ended)
        await self._told_to_stop.wait()

        self._state = "stopping"
        asyncio.get_running_loop().call_later(config.stop_seconds + WIND_UP_SECONDS, _end, Exit.FAILED)
        await controller.stop()
        unwatch.set()
        await asyncio.wait({working, watching})
        holding.remove_done_callback(self._part_ended)
        holding.cancel()
        await asyncio.wait({holding})
        await elector.release()
        metrics.leader.set(0)
        await stores.close()
        log.info("stopped")

    def _part_ended(self, part: asyncio.Task[Any]) -> None:
        """In the loop's next turn: nothing of an operator that has lost its Lease, or a part of itself, goes on."""
        if self._state == "stopping" and part.get_name() != "lease":
            return
        cause = None if part.cancelled() else part.exception()
        if isinstance(cause, LeaseLost | WatchEnded):
            log.critical("%s", cause)
        else:
            log.critical("%s ended", part.get_name(), exc_info=cause)
        _end(Exit.FAILED)

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._told_to_stop.is_set():
            log.critical("got %s again", number.name)
            _end(Exit.FAILED)
        log.info("got %s: stopping", number.name)
        self._told_to_stop.set()

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> bool:
        """Whether it came to its end before the operator was told to stop. Raises what it raises."""
        work, stop = asyncio.create_task(waiting), asyncio.create_task(self._told_to_stop.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if self._told_to_stop.is_set():
            work.cancel()
            await asyncio.wait({work})
            return False
        work.result()
        return True

    def _probes(self) -> Probes:
        live = {
            "loop": self._lag.problem,
            "reconcilers": lambda: self._asked(Controller.reconcilers_problem),
            "resync": lambda: self._asked(Controller.resync_problem),
            "watch": lambda: self._asked(Controller.watch_problem),
        }
        return Probes(self._metrics.registry, live=live, ready={"role": self._role_problem, "catalog": self._catalog_problem})

    def _asked(self, problem: Callable[[Controller], str]) -> str:
        """There is no controller while standing by, and nothing wrong with it."""
        return "" if self._controller is None else problem(self._controller)

    def _role_problem(self) -> str:
        return "" if self._state in ("standing by", "leading") else self._state

    def _catalog_problem(self) -> str:
        return "" if self._catalog is None or self._catalog.synced else "runtimes, channels and stores are not listed yet"


async def _reach(api: KubeClient) -> None:
    """Wait for the API server. Raises NotInstalled or Forbidden."""
    while True:
        try:
            await api.require((TUNING_JOBS, *KINDS))
        except Forbidden:
            raise
        except KubeError as error:
            log.warning("%s; trying again", error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


if __name__ == "__main__":
    main()
