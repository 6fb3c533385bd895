from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rig.s3 import S3Server
from store_cluster import CountingStore, artifact_store, counting_store

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.base import InputError
from tuner_job.store.objects import ObjectStore, StoreReadOnly, StoreUnavailable
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs import render
from tuning_operator.records import stores as module
from tuning_operator.records.stores import StoreNotMounted, Stores, problem_of
from tuning_operator.snapshot import Problem, StoreView

SECRET = {"operatorSecretName": "admin", "tenantSecretName": "tenant"}
HANG_SECONDS = 0.05
"""Given to calls that are meant to find no answer."""


def model(**spec: Any) -> ArtifactStore:
    return ArtifactStore.model_validate({"kind": "ArtifactStore", **artifact_store(**spec)})


def seen(**spec: Any) -> StoreView:
    view = Stores.view(model(**spec), "team")
    assert isinstance(view, StoreView)
    return view


def stores(tmp_path: Path, **more: Any) -> Stores:
    config = OperatorConfig(cluster="lab", operator_namespace="trtfleet", stores_folder=tmp_path, reconcilers=4)
    return Stores(config, **more)


def mount(folder: Path, keys: Mapping[str, str]) -> None:
    """As the kubelet mounts a Secret and replaces it: links into a folder behind a link that is renamed."""
    folder.mkdir(exist_ok=True)
    state = folder / f"..{secrets.token_hex(4)}"
    state.mkdir()
    for key, value in keys.items():
        (state / key).write_text(value)
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(f"..data/{key}")
    link = folder / "..data_tmp"
    link.symlink_to(state.name)
    os.replace(link, folder / "..data")


def opening(opened: list[dict[str, str]]) -> Callable[[str, Mapping[str, str]], ObjectStore]:
    def opener(_url: str, options: Mapping[str, str]) -> ObjectStore:
        assert options["timeoutSeconds"] == str(module.REQUEST_SECONDS)
        opened.append({name: value for name, value in options.items() if name != "timeoutSeconds"})
        return counting_store()

    return opener


# Who may use a store.


def test_a_namespace_sees_the_store_under_its_prefix() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    view = seen(
        url="s3://tuning/base/",
        endpoint="https://s3.example",
        region="eu-west-1",
        caBundle=pem,
        credentials={"type": "Secret", "secret": SECRET},
    )
    assert view == StoreView(
        name="main",
        url="s3://tuning/base/lab/team",
        options={"endpoint": "https://s3.example", "region": "eu-west-1", "caPem": pem},
        tenant_secret="tenant",
        operator_secret="admin",
    )


def test_without_a_secret_the_environment_tells_who_one_is(tmp_path: Path) -> None:
    opened: list[dict[str, str]] = []
    view = seen(credentials={"type": "Anonymous"})
    assert (view.tenant_secret, view.operator_secret) == ("", "")
    stores(tmp_path, opener=opening(opened)).open(view)
    assert opened == [{"anonymous": "true"}]


def test_a_namespace_that_is_not_named_may_not_use_it() -> None:
    problem = Stores.view(model(), "strangers")
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.transient) == ("NamespaceNotAllowed", False)
    assert "strangers" in problem.message


@pytest.mark.parametrize("url", ["file:///var/lib/tuning", "memory://tuning"])
def test_a_store_of_one_machine_is_refused(url: str) -> None:
    problem = Stores.view(model(url=url), "team")
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.transient) == ("InvalidSpec", False)
    assert url in problem.message


# Credentials.

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret\n"}


def test_a_mounted_secret_is_read_and_the_store_is_opened_once(tmp_path: Path) -> None:
    opened: list[dict[str, str]] = []
    these, view = stores(tmp_path, opener=opening(opened)), seen(credentials={"type": "Secret", "secret": SECRET})
    mount(tmp_path / "admin", KEYS)
    assert these.open(view) is these.open(view)
    assert opened == [{"accessKeyId": "id", "secretAccessKey": "secret"}]


def test_a_rotated_secret_opens_the_store_anew(tmp_path: Path) -> None:
    opened: list[dict[str, str]] = []
    these, view = stores(tmp_path, opener=opening(opened)), seen(credentials={"type": "Secret", "secret": SECRET})
    mount(tmp_path / "admin", KEYS)
    first = these.open(view)
    mount(tmp_path / "admin", {**KEYS, "AWS_ACCESS_KEY_ID": "new", "AWS_SESSION_TOKEN": "token"})
    assert these.open(view) is not first
    assert opened[-1] == {"accessKeyId": "new", "secretAccessKey": "secret", "sessionToken": "token"}


@pytest.mark.parametrize(
    ("url", "keys", "options"),
    [
        ("az://account/container", {"AZURE_STORAGE_ACCOUNT_KEY": "k"}, {"accountKey": "k"}),
        ("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, {"serviceAccountKey": "{}"}),
    ],
)
def test_each_kind_of_store_has_keys_of_its_own(tmp_path: Path, url: str, keys: dict[str, str], options: dict[str, str]) -> None:
    opened: list[dict[str, str]] = []
    mount(tmp_path / "admin", keys | {"OTHER": "x"})
    view = seen(url=url, credentials={"type": "Secret", "secret": SECRET})
    stores(tmp_path, opener=opening(opened)).open(view)
    assert opened == [options]


def test_workers_and_operator_agree_on_the_keys_of_a_secret() -> None:
    workers = {scheme: {key for key, _ in keys} for scheme, keys in render._CREDENTIALS.items()}
    assert workers == {scheme: {*keys} for scheme, keys in module._OPTIONS.items()}
    optional = {key for keys in render._CREDENTIALS.values() for key, may_miss in keys if may_miss}
    assert optional == module._OPTIONAL


def test_a_secret_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    view = seen(credentials={"type": "Secret", "secret": SECRET})
    with pytest.raises(StoreNotMounted, match=f"Secret admin is not mounted .*{tmp_path / 'admin'}") as caught:
        stores(tmp_path).open(view)
    assert problem_of(caught.value) == Problem("StoreNotMounted", str(caught.value))


def test_a_key_that_the_secret_lacks_is_named(tmp_path: Path) -> None:
    mount(tmp_path / "admin", {"AWS_ACCESS_KEY_ID": "id"})
    with pytest.raises(StoreNotMounted, match="does not exist, or has no key AWS_SECRET_ACCESS_KEY"):
        stores(tmp_path).open(seen(credentials={"type": "Secret", "secret": SECRET}))


def test_a_huge_credential_is_refused(tmp_path: Path) -> None:
    mount(tmp_path / "admin", {**KEYS, "AWS_ACCESS_KEY_ID": "x" * (1 << 20)})
    with pytest.raises(StoreNotMounted, match="AWS_ACCESS_KEY_ID: longer than"):
        stores(tmp_path).open(seen(credentials={"type": "Secret", "secret": SECRET}))


def test_a_real_store_is_refused_to_wrong_credentials_and_open_to_rotated_ones(tmp_path: Path, s3_server: S3Server) -> None:
    address = s3_server.new_store()
    spec = {"url": address.url, "endpoint": s3_server.endpoint, "region": "us-east-1", "insecureHttp": True}
    view = seen(**spec, credentials={"type": "Secret", "secret": SECRET})
    mount(tmp_path / "admin", {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "wrong"})

    async def main() -> None:
        clock = [0.0]
        these = stores(tmp_path, clock=lambda: clock[0], patience=60.0)
        problem = await these.check(view)
        assert problem is not None
        assert (problem.reason, problem.transient) == ("StoreUnavailable", True)
        assert "credentials" in problem.message
        mount(tmp_path / "admin", {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "testing-secret"})
        clock[0] += 60
        assert await these.check(view) is None
        assert await these.call(view, lambda store: store.create("a", b"1"), 30)
        await these.close()

    asyncio.run(main())
    assert [info.key for info in s3_server_store(s3_server, address.url).list("")] == ["a"]


def s3_server_store(server: S3Server, url: str) -> ObjectStore:
    """The prefix of the namespace, seen by somebody else."""
    return ObjectStore.open(f"{url}/lab/team", server.options)


# Threads.


def views() -> tuple[StoreView, StoreView]:
    return StoreView("one", "s3://one/team", {}), StoreView("two", "s3://two/team", {})


def hanging(tmp_path: Path) -> tuple[Stores, CountingStore, CountingStore, list[float]]:
    """Two threads for each of two stores; the first store hangs."""
    one, two = counting_store(), counting_store()
    one.gate = threading.Event()
    clock = [0.0]

    def opener(url: str, _options: Mapping[str, str]) -> ObjectStore:
        return one if url.startswith("s3://one") else two

    def passing() -> float:
        """Every look at the clock takes so long that any failure is a slow one."""
        clock[0] += HANG_SECONDS
        return clock[0]

    return stores(tmp_path, opener=opener, clock=passing, patience=HANG_SECONDS), one, two, clock


def test_work_runs_in_a_thread_of_its_store_and_its_errors_come_back(tmp_path: Path) -> None:
    def refuse(_store: ObjectStore) -> None:
        raise StoreReadOnly("not yours")

    async def main() -> None:
        these = stores(tmp_path, opener=lambda _url, _options: counting_store())
        name = await these.call(views()[0], lambda _store: threading.current_thread().name, 10)
        assert name.startswith("store-one")
        with pytest.raises(StoreReadOnly, match="not yours"):
            await these.call(views()[0], refuse, 10)
        await these.close()

    asyncio.run(main())


def test_a_store_that_hangs_is_given_up_and_disturbs_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        these, one, _, _ = hanging(tmp_path)
        first, second = views()
        assert one.gate is not None
        calls = [these.call(first, lambda store: store.exists("a"), HANG_SECONDS) for _ in range(2)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, StoreUnavailable) for end in ends)
        asked = len(one.asked)
        with pytest.raises(StoreUnavailable, match="it hangs"):
            await these.call(first, lambda store: store.exists("a"), HANG_SECONDS)
        assert len(one.asked) == asked, "nothing more is asked of it"
        assert await these.call(second, lambda store: store.exists("a"), 30) is False
        one.gate.set()
        async with asyncio.timeout(30):
            while these._lanes["one"].abandoned:  # noqa: ASYNC110 - its threads report to the loop
                await asyncio.sleep(0)
        assert await these.call(first, lambda store: store.exists("a"), 30) is False
        await these.close()

    asyncio.run(main())


def test_who_finds_all_threads_of_a_slow_store_busy_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        these, one, _, _ = hanging(tmp_path)
        first, _ = views()
        assert one.gate is not None
        busy = [asyncio.create_task(these.call(first, lambda store: store.exists("a"), 60)) for _ in range(2)]
        await asyncio.sleep(0)  # both have begun
        with pytest.raises(StoreUnavailable, match="busy"):
            await these.call(first, lambda store: store.exists("a"), 60)
        one.gate.set()
        assert await asyncio.gather(*busy) == [False, False]
        await these.close()

    asyncio.run(main())


def test_a_slow_failure_holds_up_nobody_else_until_one_call_finds_the_store_back(tmp_path: Path) -> None:
    store, clock = counting_store(), [0.0]

    def slowly(given: ObjectStore) -> bool:
        clock[0] += 20
        return given.exists("a")

    async def main() -> None:
        these = stores(tmp_path, opener=lambda _url, _options: store, clock=lambda: clock[0])
        first, second = views()
        store.down = True
        with pytest.raises(StoreUnavailable, match="down on purpose"):
            await these.call(first, slowly, 60)
        with pytest.raises(StoreUnavailable, match="down on purpose"):
            await these.call(first, lambda _store: pytest.fail("it was asked"), 60)
        assert await these.call(second, lambda _store: True, 60), "another store's threads are its own"
        clock[0] += module.AWAY_SECONDS
        trying = asyncio.create_task(these.call(first, slowly, 60))
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await these.call(first, lambda _store: pytest.fail("two at once"), 60)
        with pytest.raises(StoreUnavailable):
            await trying
        store.down = False
        clock[0] += module.AWAY_SECONDS
        assert await these.call(first, slowly, 60) is False, "it is back, slow as it is"
        assert await asyncio.gather(*(these.call(first, lambda _store: True, 60) for _ in range(4))) == [True] * 4
        await these.close()

    asyncio.run(main())


def test_a_long_read_of_one_namespace_makes_the_store_away_for_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        these, one, _, _ = hanging(tmp_path)
        first, _ = views()
        assert one.gate is not None
        with pytest.raises(StoreUnavailable, match="no answer within"):
            await these.call(first, lambda store: store.exists("much"), HANG_SECONDS)
        other = StoreView("one", "s3://one/other", {})
        assert await these.call(other, lambda _store: "answered", 60) == "answered"
        one.gate.set()
        await these.close()

    asyncio.run(main())


def test_a_quick_failure_disturbs_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        store = counting_store()
        these = stores(tmp_path, opener=lambda _url, _options: store, clock=lambda: 0.0)
        store.down = True
        with pytest.raises(StoreUnavailable):
            await these.call(views()[0], lambda given: given.exists("a"), 60)
        store.down = False
        assert await these.call(views()[0], lambda given: given.exists("a"), 60) is False
        await these.close()

    asyncio.run(main())


def test_after_close_nothing_begins(tmp_path: Path) -> None:
    async def main() -> None:
        these, _, _, _ = hanging(tmp_path)
        assert await these.call(views()[1], lambda store: store.exists("a"), 30) is False
        await these.close()
        with pytest.raises(StoreUnavailable, match="stopping"):
            await these.call(views()[1], lambda store: store.exists("a"), 30)

    asyncio.run(main())


# Honesty.


def probing(tmp_path: Path) -> tuple[Stores, CountingStore, list[float]]:
    store, clock = counting_store(), [0.0]
    return stores(tmp_path, opener=lambda _url, _options: store, clock=lambda: clock[0], patience=60.0), store, clock


def test_a_store_is_probed_once_an_hour_for_all_namespaces(tmp_path: Path) -> None:
    async def main() -> None:
        these, store, clock = probing(tmp_path)
        for prefix in ("a", "b"):
            assert await these.check(StoreView("one", f"s3://one/{prefix}", {})) is None
        probed = len(store.asked)
        assert probed > 0
        clock[0] = 3599
        assert await these.check(views()[0]) is None
        assert len(store.asked) == probed
        clock[0] = 3601
        assert await these.check(views()[0]) is None, "looked at anew meanwhile"
        await asyncio.gather(*these._probing.values())
        assert len(store.asked) > probed
        assert not list(store.list(".probe")), "nothing is left behind"
        await these.close()

    asyncio.run(main())


def test_many_who_ask_at_once_wait_for_one_probe(tmp_path: Path) -> None:
    async def main() -> None:
        these, store, _ = probing(tmp_path)
        assert await asyncio.gather(*(these.check(views()[0]) for _ in range(20))) == [None] * 20
        assert sum(verb == "list" for verb, _ in store.asked) == 1
        await these.close()

    asyncio.run(main())


def test_a_store_that_ignores_conditions_is_refused_for_good(tmp_path: Path) -> None:
    async def main() -> None:
        these, store, clock = probing(tmp_path)
        store.ignores_conditions = True
        problem = await these.check(views()[0])
        assert problem is not None
        assert (problem.reason, problem.transient) == ("StoreNotConditional", False)
        store.ignores_conditions = False
        assert await these.check(views()[0]) == problem
        clock[0] = 301  # somebody may have put another server there
        assert await these.check(views()[0]) is None
        await these.close()

    asyncio.run(main())


def test_an_outage_passes_and_says_nothing_about_honesty(tmp_path: Path) -> None:
    async def main() -> None:
        these, store, clock = probing(tmp_path)
        store.down = True
        problem = await these.check(views()[0])
        assert problem is not None
        assert (problem.reason, problem.transient) == ("StoreUnavailable", True)
        store.down = False
        clock[0] = 16
        assert await these.check(views()[0]) is None
        store.down = True
        clock[0] = 5000
        assert await these.check(views()[0]) is None
        await asyncio.gather(*these._probing.values())
        assert await these.check(views()[0]) is None
        await these.close()

    asyncio.run(main())


def test_a_wrong_option_is_a_problem_and_no_exception(tmp_path: Path) -> None:
    def opener(_url: str, _options: Mapping[str, str]) -> ObjectStore:
        raise InputError("store s3://one: endpoint 'x': write it as https://host")

    async def main() -> None:
        these = stores(tmp_path, opener=opener)
        problem = await these.check(views()[0])
        assert problem is not None
        assert (problem.reason, problem.transient) == ("InvalidInput", False)
        await these.close()

    asyncio.run(main())


def test_a_probe_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        these, one, _, _ = hanging(tmp_path)
        assert one.gate is not None
        problem = await these.check(views()[0])
        assert problem is not None
        assert problem.transient
        assert "being checked" in problem.message
        one.gate.set()
        assert await asyncio.gather(*these._probing.values()) == [None]
        assert await these.check(views()[0]) is None
        await these.close()

    asyncio.run(main())


def test_a_store_that_was_honest_counts_as_such_while_it_is_looked_at_anew(tmp_path: Path) -> None:
    async def main() -> None:
        store, clock = counting_store(), [0.0]
        these = stores(tmp_path, opener=lambda _url, _options: store, clock=lambda: clock[0], patience=HANG_SECONDS)
        while await these.check(views()[0]) is not None:
            await asyncio.gather(*these._probing.values())
        store.gate, clock[0] = threading.Event(), 3601.0
        assert await these.check(views()[0]) is None
        store.gate.set()
        await asyncio.gather(*these._probing.values())
        await these.close()

    asyncio.run(main())
