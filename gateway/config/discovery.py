"""Where a model's replicas are found, beside those that the file lists itself."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from gateway.config.fields import ListOf, Name, Seconds, Section, refused

# RFC 1035, section 2.3.4, less the root's byte and the first length's.
_MAX_NAME_CHARACTERS = 253
DNS_PORT = 53


def _check_dns_name(text: str) -> str:
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    is_name = re.fullmatch(rf"{label}(\.{label})*\.?", text) is not None
    if not is_name or len(text) > _MAX_NAME_CHARACTERS or _is_address(text):
        raise refused("must be a DNS name such as engines.default.svc.cluster.local")
    return text.lower()


def _check_server(text: str) -> str:
    try:
        name_server(text)
    except ValueError:
        raise refused("must be an address such as 10.96.0.10, 10.0.0.2:8600 or [::1]:53") from None
    return text


def _check_srv_service(text: str) -> str:
    # A port's name in Kubernetes, and RFC 6335's rule for names of services.
    if not re.fullmatch(r"(?=.*[A-Za-z])[A-Za-z0-9]([A-Za-z0-9-]{0,13}[A-Za-z0-9])?", text):
        raise refused("must be a port's name such as http, which makes _http._tcp.HOST")
    return text.lower()


def _check_port_name(text: str) -> str:
    if not re.fullmatch(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", text):
        raise refused("must be a port's number, or its name such as http")
    return text


def _check_object_name(text: str) -> str:
    # RFC 1123 label: what Kubernetes allows for namespaces and Services.
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise refused("must be a Kubernetes name: lower case letters, digits and -, at most 63")
    return text


def name_server(text: str) -> tuple[str, int]:
    """Split a name server's `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`; without a port it is 53.

    Raises:
        ValueError: It is none of these.
    """
    if _is_address(text):
        return text, DNS_PORT
    host, _, port = text.rpartition(":")
    address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    in_brackets = host.startswith("[") and host.endswith("]")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        raise ValueError(text)
    if in_brackets != (address.version == 6):
        raise ValueError(text)
    return str(address), int(port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _port_tag(value: Any) -> str:
    return "number" if isinstance(value, int) and not isinstance(value, bool) else "name"


DnsName = Annotated[str, AfterValidator(_check_dns_name)]
NameServer = Annotated[str, AfterValidator(_check_server)]
SrvService = Annotated[str, AfterValidator(_check_srv_service)]
ObjectName = Annotated[str, AfterValidator(_check_object_name)]
TargetPort = Annotated[int, Field(ge=1, le=65535)]
PortOrName = Annotated[
    Annotated[TargetPort, Tag("number")]
    | Annotated[str, AfterValidator(_check_port_name), Tag("name")],
    Discriminator(_port_tag),
]


class FileDiscoveryConfig(Section):
    """Replicas from a file that another program writes: YAML or JSON, a list of addresses.

    An item is an address, or a mapping of `url` and `name`. A broken or missing file changes
    nothing. Best rename a finished file over the old one: what is written in place may be half
    written when it is seen, and counts one interval later.
    """

    kind: Literal["file"] = Field(description="Names this kind.")
    path: Name = Field(
        description="The file, on a local disk or a ConfigMap's mount; links are followed anew at "
        "each look.",
        examples=["/etc/warmroute/replicas.yaml"],
    )
    interval_s: Seconds = Field(
        0.5,
        description="Seconds between two looks at the file. Half a second costs next to nothing, "
        "as only a changed file is parsed.",
    )

    @property
    def source(self) -> str:
        """Where it looks, for people."""
        return self.path


class DnsDiscoveryConfig(Section):
    """Replicas from DNS: the addresses of a headless Service, or SRV records.

    With `port` every A or AAAA record is a replica. With `service` every SRV record is one, known
    by the name and port that the record gives, as certificates and meshes want; priority and
    weight do not count, load decides. A Service with a cluster address of its own is one address:
    behind it routing cannot choose.
    """

    kind: Literal["dns"] = Field(description="Names this kind.")
    host: DnsName = Field(
        description="Name to look up. Without a final dot and without `servers`, the search list "
        "of /etc/resolv.conf applies.",
        examples=["engines.default.svc.cluster.local"],
    )
    port: TargetPort | None = Field(
        None, description="TCP port of all replicas; or give `service`."
    )
    service: SrvService | None = Field(
        None,
        description="Name of the port: asks for SRV records of `_SERVICE._tcp.HOST`, which hold "
        "port numbers; or give `port`.",
    )
    scheme: Literal["http", "https"] = Field(
        "http",
        description="How the replicas are spoken to. With `https` and `port` their certificates "
        "must name addresses.",
    )
    family: Literal["auto", "ipv4", "ipv6"] = Field(
        "auto",
        description="Which addresses count, with `port`. `auto` takes IPv4, and IPv6 where there "
        "is none: a dual-stack Service lists each pod under both, and a pod must not count twice.",
    )
    servers: ListOf[NameServer] = Field(
        (),
        description="Name servers, as ADDRESS or ADDRESS:PORT, such as Consul's 10.0.0.2:8600. "
        "Empty means those of /etc/resolv.conf.",
    )
    min_ttl_s: Seconds = Field(
        1.0,
        description="Least seconds between two lookups, also where a record lives shorter: its "
        "TTL may be 0. After a failure the pause begins here and doubles.",
    )
    max_ttl_s: Seconds = Field(
        30.0,
        description="Most seconds between two lookups, also where a record lives longer, and the "
        "longest pause after failures: for so long a new replica may be unknown. 30 is the TTL "
        "of most clusters.",
    )
    timeout_s: Seconds = Field(
        5.0,
        description="Seconds that one lookup may take with all its tries; one try gets half of "
        "it, as packets get lost.",
    )
    stale_s: Seconds = Field(
        300.0,
        description="Seconds that the last good answer stays in force while lookups fail or find "
        "nothing; then the model has none of these replicas. Probes notice dead ones long before, "
        "so this only bounds for how long addresses may be someone else's by now.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.port is None) == (self.service is None):
            raise refused("must have either port or service")
        if self.min_ttl_s > self.max_ttl_s:
            raise refused("must have a min_ttl_s of at most max_ttl_s")
        return self

    @property
    def query_name(self) -> str:
        """The name to ask for."""
        return f"_{self.service}._tcp.{self.host}" if self.service else self.host

    @property
    def source(self) -> str:
        """Where it looks, for people."""
        return f"SRV {self.query_name}" if self.service else f"{self.host}, port {self.port}"


class KubernetesDiscoveryConfig(Section):
    """Replicas from the Kubernetes API: the endpoints of a Service, or pods by their labels.

    Changes come as they happen, names are those of pods, and a pod that ends leaves at once. Needs
    list and watch of EndpointSlices, or of pods, in the one namespace.
    """

    kind: Literal["kubernetes"] = Field(description="Names this kind.")
    namespace: ObjectName | None = Field(
        None, description="Namespace to look in. Left out, it is that of the gateway's own pod."
    )
    service: ObjectName | None = Field(
        None, description="Service whose endpoints are the replicas; or give `selector`."
    )
    selector: Name | None = Field(
        None,
        description="Label selector of the pods; or give `service`. HyperPod's operator labels "
        "pods `app=NAME`, with the name of the InferenceEndpointConfig.",
    )
    port: PortOrName = Field(
        description="Port of the replicas: its number, or its name in the Service or the pod.",
        examples=["8000"],
    )
    scheme: Literal["http", "https"] = Field("http", description="How the replicas are spoken to.")
    kubeconfig: Name | None = Field(
        None,
        description="File with the cluster's address and credentials, for a gateway outside the "
        "cluster. Left out, it is the pod's service account.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.service is None) == (self.selector is None):
            raise refused("must have either service or selector")
        return self

    @property
    def source(self) -> str:
        """Where it looks, for people."""
        what = f"Service {self.service}" if self.service else f"pods {self.selector}"
        return f"{what} in namespace {self.namespace or '(own)'}, port {self.port}"


DiscoveryConfig = Annotated[
    FileDiscoveryConfig | DnsDiscoveryConfig | KubernetesDiscoveryConfig,
    Field(discriminator="kind"),
]
"""Any discovery; `kind` says which. The listed `replicas` of a model are the kind `static`."""
