"""The operator's rights as docs/rbac.md justifies them."""

from __future__ import annotations

import re

from chart_helm import ROOT, Grant

PAGE = (ROOT / "docs" / "rbac.md").read_text()


def documented(where: str) -> set[Grant]:
    """Of the operator's table; every row has its reason."""
    rows = re.findall(r"^\| ([^|]+) \| (\S+) \| (\S+) \| (\S+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    found = [(group.replace("(core)", ""), resource, verb, why) for place, group, resource, verb, why in rows if place == where]
    assert found
    assert all(len(why.split()) > 2 for *_, why in found)
    grants = {(group, resource, verb) for group, resource, verb, _ in found}
    assert len(grants) == len(found), "a row stands twice"
    return grants


JOBS, CLUSTER, OWN = (documented(each) for each in ("jobs' namespaces", "cluster", "own namespace"))
