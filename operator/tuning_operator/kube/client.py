"""KubeApi over `kubernetes.aio`: JSON in, JSON out, a deadline for each call, and one line for whatever went wrong.

Of the client library only the transport and the credentials are used. Its models are never loaded: they cost memory, and would
drop the fields of a newer server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import yaml
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from tuner_job import __version__
from tuner_job.api.base import InputError, TrtfleetError
from tuning_operator.kube.api import (
    FIELD_MANAGER,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Object,
    Resource,
    Throttled,
    Unavailable,
)

CALL_SECONDS = 10.0
LIST_SECONDS = 30.0
"""Of a list with all its pages."""
PAGE = 500

USER_AGENT = f"trtfleet-operator/{__version__}"

Observer = Callable[[str, str, int, float], None]
"""Told of each answer: verb, plural, HTTP status (0: none came), seconds."""

_AUTHENTICATION = ["BearerToken"]
_OWN_DEADLINE = aiohttp.ClientTimeout()
"""None of aiohttp's: `asyncio.timeout` bounds the whole call, signing in included."""


class NotInstalled(TrtfleetError):
    """The API server does not serve our kinds."""

    reason = "NotInstalled"


class KubeClient:
    """Implements KubeApi. See `open_client`."""

    def __init__(self, client: ApiClient, observer: Observer | None = None, *, call_seconds: float = CALL_SECONDS) -> None:
        self._client = client
        self._seconds = call_seconds
        self._observer = observer or (lambda *_: None)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        return await self._call(_Call("get", "GET", resource, namespace, name))

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "") -> list[Object]:
        """Each object says its apiVersion and kind, as the server's lists of built-in kinds do not, and has no managedFields."""
        selectors = [("labelSelector", labels), ("fieldSelector", fields), ("limit", str(PAGE))]
        call = _Call("list", "GET", resource, namespace, query=tuple(each for each in selectors if each[1]))
        found: list[Object] = []
        following = ""
        async with _deadline(call, LIST_SECONDS):
            while True:
                page = await self._answer(call, more=(("continue", following),) if following else ())
                found += (_listed(resource, each) for each in page.get("items") or ())
                following = page.get("metadata", {}).get("continue", "")
                if not following:
                    return found

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        name = body.get("metadata", {}).get("name", "")
        return await self._call(_Call("create", "POST", resource, namespace, name, body=body, query=_MANAGED))

    async def replace(self, resource: Resource, body: Object) -> Object:
        metadata = body["metadata"]
        call = _Call("replace", "PUT", resource, metadata.get("namespace"), metadata["name"], body=body, query=_MANAGED)
        if not metadata.get("resourceVersion"):
            raise Invalid(f"{call}: metadata.resourceVersion is missing; read the object first")
        return await self._call(call)

    async def merge(self, resource: Resource, name: str, namespace: str | None, patch: Object) -> Object:
        return await self._call(
            _Call("merge", "PATCH", resource, namespace, name, body=patch, query=_MANAGED, content="application/merge-patch+json")
        )

    async def apply_status(self, resource: Resource, name: str, namespace: str | None, status: Object) -> Object:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        return await self._call(
            _Call(
                *("apply_status", "PATCH", resource, namespace, name),
                body=body,
                query=(*_MANAGED, ("force", "true")),
                subresource="status",
                content="application/apply-patch+yaml",  # JSON is YAML
            )
        )

    async def delete(self, resource: Resource, name: str, namespace: str | None, *, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._call(_Call("delete", "DELETE", resource, namespace, name, body=body))
        except NotFound:
            return

    async def require(self, resources: Iterable[Resource]) -> None:
        """Raises NotInstalled naming the kinds that the API server does not serve."""
        missing: list[str] = []
        versions = {each.api_version: each for each in resources}
        for api_version, any_of_it in versions.items():
            served = await self._served(any_of_it)
            wanted = (each.plural for each in resources if each.api_version == api_version)
            missing += [f"{plural} of {api_version}" for plural in wanted if plural not in served]
        if missing:
            raise NotInstalled(
                f"the API server does not serve {', '.join(missing)}; install the CRDs: helm upgrade with crds.enabled=true, or "
                "kubectl apply --server-side -f crds/"
            )

    async def _served(self, resource: Resource) -> set[str]:
        """Plurals of the resource's API version."""
        version = Resource(resource.group, resource.version, "", "APIResourceList", namespaced=False)
        try:
            found = await self._call(_Call("get", "GET", version, None))
        except NotFound:
            return set()
        return {each["name"] for each in found.get("resources", ())}

    async def _call(self, call: _Call) -> Object:
        async with _deadline(call, self._seconds):
            return await self._answer(call)

    async def _answer(self, call: _Call, more: tuple[tuple[str, str], ...] = ()) -> Object:
        loop = asyncio.get_running_loop()
        began, code = loop.time(), 0
        try:
            request = await self._client.param_serialize(
                call.method,
                quote(call.path, safe="/"),
                query_params=[*call.query, *more],
                header_params={"Accept": "application/json", "Content-Type": call.content},
                body=call.body,
                auth_settings=_AUTHENTICATION,
            )
            response = await self._client.call_api(*request, _request_timeout=_OWN_DEADLINE)
            data = await response.read()  # type: ignore[no-untyped-call]
            code = response.status
            if code >= 400:
                raise _error(call, code, data, response.headers.get("Retry-After", ""))
            answer: Object = json.loads(data)
        except (aiohttp.ClientError, OSError, ValueError, ConfigException) as error:
            raise Unavailable(f"{call}: {str(error) or type(error).__name__}", code=code) from None
        finally:
            self._observer(call.verb, call.resource.plural, code, loop.time() - began)
        return answer


@asynccontextmanager
async def open_client(
    kubeconfig: Path | None, observer: Observer | None = None, *, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[KubeClient]:
    """None: the pod's service account, whose token is read again as it is renewed. Raises InputError."""
    async with ApiClient(await _configuration(kubeconfig)) as client:
        client.user_agent = USER_AGENT
        yield KubeClient(client, observer, call_seconds=call_seconds)


@dataclass(frozen=True)
class Session:
    """A signed-in way to the API server, for who speaks HTTP himself."""

    server: str
    http: aiohttp.ClientSession
    """Each request carries the token of the moment. Whoever opened it closes it."""


async def open_session(kubeconfig: Path | None) -> Session:
    """With the credentials of `open_client`, bound to the running loop. Raises InputError."""
    configuration = await _configuration(kubeconfig)
    client = ApiClient(configuration)  # for its TLS context and its way to sign in; it opens no connection

    async def sign(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        headers: dict[str, str] = {}
        await client.update_params_for_auth(headers, None, _AUTHENTICATION, request.url.path, request.method, None)
        request.headers.update(headers)
        return await send(request)

    connector = aiohttp.TCPConnector(limit=0, ssl=client.rest_client.ssl_context)
    return Session(
        configuration.host,
        aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": USER_AGENT},
            middlewares=(sign,),
            proxy=configuration.proxy,
        ),
    )


async def _configuration(kubeconfig: Path | None) -> Configuration:
    configuration = Configuration()
    # Proxies of the environment are for the world outside; looking them up would also cost a thread for each request.
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        if kubeconfig is None:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, ValueError, TypeError, yaml.YAMLError) as error:
        if kubeconfig is None:
            raise InputError(f"no service account of a cluster: {error} Outside of one, name a file with --kubeconfig") from None
        raise InputError(f"kubeconfig {kubeconfig}: {error}") from None
    return configuration


_MANAGED = (("fieldManager", FIELD_MANAGER),)


@dataclass(frozen=True)
class _Call:
    verb: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    resource: Resource
    namespace: str | None
    name: str = ""
    body: Object | None = None
    query: tuple[tuple[str, str], ...] = ()
    subresource: str = ""
    content: str = "application/json"

    @property
    def path(self) -> str:
        return self.resource.path("" if self.verb == "create" else self.name, self.namespace, self.subresource)

    def __str__(self) -> str:
        what = "/".join(part for part in (self.namespace, self.name) if part)
        return " ".join(part for part in (self.verb, self.resource.kind, what) if part)


@asynccontextmanager
async def _deadline(call: _Call, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(f"{call}: no answer within {seconds:g} s") from None


def _listed(resource: Resource, body: Object) -> Object:
    body["metadata"].pop("managedFields", None)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _error(call: _Call, code: int, data: bytes, retry_after: str) -> KubeError:
    status = _status(data)
    reason = status.get("reason", "")
    message = f"{call}: {status.get('message') or data[:500].decode(errors='replace') or f'HTTP {code}'}"
    if code == 429:
        return Throttled(message, code=code, retry_after=float(retry_after) if retry_after.isdecimal() else 1.0)
    if code == 409:
        return (AlreadyExists if reason == "AlreadyExists" else Conflict)(message, code=code)
    if code in (401, 410) or code >= 500:  # 410: the pages of a list took longer than the server keeps them
        return Unavailable(message, code=code)
    kinds: dict[int, type[KubeError]] = {403: Forbidden, 404: NotFound}
    return kinds.get(code, Invalid)(message, code=code)


def _status(data: bytes) -> dict[str, Any]:  # Any: the server's JSON
    """The API server's Status; nothing when it was a proxy that answered."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
