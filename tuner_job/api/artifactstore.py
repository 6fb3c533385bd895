"""ArtifactStore: where records and engines are kept, and who may use it."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tuner_job.api.resource import AGE_COLUMN, READY_COLUMNS, Column, Keyed, Name, Naming, ObjectName, Resource, Spec, rule
from tuner_job.api.runtime import PlainStatus

_SEGMENT = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_URL = r"^((s3|gs|az|memory)://[^\s/?#@]+(/[^\s?#]*)?|file://[^?#\x00-\x1f]+)$"
_LOOPBACK = r"^http://(127[.]0[.]0[.]1|localhost)(:[0-9]+)?(/.*)?$"


class SecretCredentials(Spec):
    """Secrets that hold the store's credentials. Each is mounted; none is read through the API."""

    operator_secret_name: ObjectName
    """Secret in the operator's own namespace; at most 253 characters."""
    tenant_secret_name: ObjectName
    """Secret of this name in the namespace of each TuningJob, for its workers; at most 253 characters."""


class Credentials(Spec):
    """How operator and workers prove to the store who they are."""

    type: Literal["WorkloadIdentity", "Secret", "Anonymous"]
    """`WorkloadIdentity`: the pods' service accounts; `Secret`: the member `secret`; `Anonymous`: not at all.
    Local runs have neither pods nor Secrets and take what the environment gives, unless it is `Anonymous`."""
    secret: SecretCredentials | None = None
    """For type Secret, and only for it."""

    @rule("(self.type == 'Secret') == has(self.secret)", "type Secret goes with `secret`, and only it", field_path=".secret")
    def _secret_for_secret(self) -> bool:
        return (self.type == "Secret") == (self.secret is not None)


class AllowedNamespace(Spec):
    """A namespace whose TuningJobs may use the store."""

    name: Name
    """The namespace; at most 63 characters."""
    prefix: Annotated[str, Field(min_length=1, max_length=64, pattern=f"^{_SEGMENT}(/{_SEGMENT})*$")]
    """Prefix of its keys; at most 64 characters. Namespaces that share a prefix trust each other and share results."""


class ArtifactStoreSpec(Spec):
    """A bucket or folder that keeps every record and engine. Administered for the whole cluster."""

    url: Annotated[str, Field(min_length=5, max_length=256, pattern=_URL)]
    """`s3://bucket/prefix`, `gs://bucket/prefix`, `az://account/container/prefix`, or `file:///folder` for local runs;
    at most 256 characters."""
    endpoint: Annotated[str | None, Field(max_length=256, pattern=r"^https?://[^\s?#@]+$")] = None
    """Address of the store's API if it is not the cloud's own; at most 256 characters."""
    region: Annotated[str | None, Field(min_length=1, max_length=63, pattern=r"^[-a-z0-9]+$")] = None
    """Region of the bucket, for s3; at most 63 characters."""
    addressing: Literal["Path", "VirtualHosted"] | None = None
    """How s3 buckets are addressed; absent means Path."""
    ca_bundle: Annotated[str | None, Field(max_length=65536, pattern=r"^-----BEGIN CERTIFICATE-----\n")] = None
    """PEM certificates that the endpoint is checked against; at most 65,536 characters. Absent means the system's."""
    insecure_http: bool = False
    """Accept an `http://` endpoint that is not on this machine."""
    credentials: Credentials | None = None
    """Absent means whatever the environment gives (workload identity in pods, `AWS_…` variables locally)."""
    allowed_namespaces: Annotated[tuple[AllowedNamespace, ...], Keyed(most=256)] = ()
    """At most 256. No others may use the store on a cluster; local runs ignore it."""

    @rule(
        "!has(self.endpoint) || !self.endpoint.startsWith('http://') || (has(self.insecureHttp) && self.insecureHttp)"
        " || self.endpoint.matches('^http://(127[.]0[.]0[.]1|localhost)(:[0-9]+)?(/.*)?$')",
        "an http:// endpoint sends credentials and engines in the clear; use https://, or set insecureHttp",
        field_path=".endpoint",
    )
    def _encrypted(self) -> bool:
        endpoint = self.endpoint or ""
        return not endpoint.startswith("http://") or self.insecure_http or re.search(_LOOPBACK, endpoint) is not None

    @property
    def options(self) -> dict[str, str]:
        """Options of `store.open`. The CA bundle is not among them: the caller adds it as `caPem`."""
        anonymous = self.credentials is not None and self.credentials.type == "Anonymous"
        chosen = {
            "endpoint": self.endpoint,
            "region": self.region,
            "pathStyle": None if self.addressing is None else str(self.addressing == "Path").lower(),
            "allowHttp": "true" if self.insecure_http else None,
            "anonymous": "true" if anonymous else None,
        }
        return {name: value for name, value in chosen.items() if value is not None}


class ArtifactStore(Resource):
    """Where records and engines are kept."""

    naming: ClassVar[Naming] = Naming(
        plural="artifactstores",
        scope="Cluster",
        short_names=("as",),
        columns=(Column("URL", ".spec.url"), *READY_COLUMNS, AGE_COLUMN),
    )

    kind: Literal["ArtifactStore"] = "ArtifactStore"
    spec: ArtifactStoreSpec
    """The store and who may use it."""
    status: PlainStatus | None = None
    """What the operator observed; `Ready` says whether the store keeps its promises about conditional writes."""
