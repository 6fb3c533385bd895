"""The cluster's nodes, as far as counting them needs, listed at most twice a minute for all TuningJobs together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tuning_operator.config import OperatorConfig
from tuning_operator.kube.api import NODES, KubeApi, KubeError, Object

FRESH_SECONDS = 30.0


class Nodes:
    """Belongs to one event loop."""

    def __init__(self, api: KubeApi, config: OperatorConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic seconds."""
        self._api = api
        self._allowed = config.read_nodes
        self._clock = clock
        self._lock = asyncio.Lock()
        self._nodes: list[Object] | None = None
        self._until = float("-inf")

    async def list(self) -> list[Object] | None:
        """None when they cannot be seen: nothing rests on them but what people are told."""
        if not self._allowed:
            return None
        async with self._lock:
            if self._clock() >= self._until:
                try:
                    self._nodes = [_lean(each) for each in await self._api.list(NODES)]
                except KubeError:
                    self._nodes = None
                self._until = self._clock() + FRESH_SECONDS
            return self._nodes


def _lean(node: Object) -> Object:
    """A node's images and annotations are most of its bytes."""
    status, spec = node.get("status") or {}, node.get("spec") or {}
    return {
        "metadata": {"labels": node["metadata"].get("labels") or {}},
        "spec": {part: spec[part] for part in ("taints", "unschedulable") if part in spec},
        "status": {part: status[part] for part in ("conditions", "allocatable") if part in status},
    }
