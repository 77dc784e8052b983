"""The flags with which kube-apiserver sends pods to their agent, and their consequences.

Pods use the kubernetes Service. KEP-2025: its endpoint is the agent's address, which exists on
every node, and which kube-apiserver writes there if its flags advertise that address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from isthmus.dial.settings_targets import Target
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort

_NAME, _NAMESPACE, _PORT_NAME = "kubernetes", "default", "https"
_NONE = "--endpoint-reconciler-type=none"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of kube-apiserver, and why."""

    text: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiserverPlan:
    """Flags, notes, and the endpoints of the kubernetes Service."""

    flags: tuple[Flag, ...]
    notes: tuple[str, ...]
    documents: tuple[dict[str, Any], ...]
    #: kube-apiserver does not write endpoints: the user has to apply ``documents``.
    by_hand: bool

    def manifests(self) -> str:
        """The endpoints as YAML."""
        return to_yaml(self.documents)


def apiserver_plan(
    addresses: Sequence[IPv4Address | IPv6Address], target: Target, *, by_hand: bool = False
) -> ApiserverPlan:
    """Choose the flags of kube-apiserver; with ``by_hand`` no reconciler writes endpoints.

    kube-apiserver advertises one address, the first; its certificate names all of them.

    If the agent's port differs from kube-apiserver's, endpoints can only be written by hand: the
    reconciler writes the port that kube-apiserver listens on.
    """
    address, *others = addresses
    port, own = target.local_port, target.destination.port
    by_hand = by_hand or port != own
    at = HostPort(str(address), port)
    flags = [
        Flag(
            f"--advertise-address={address}",
            "the agent's --bind-address: where nodes and pods find kube-apiserver",
        ),
        Flag(
            f"--secure-port={own}",
            "the port of --target at the server, and with the reconciler the agent's local port",
        ),
    ]
    if by_hand:
        flags.append(Flag(_NONE, "the endpoints of the kubernetes Service are written by you"))
    return ApiserverPlan(
        flags=tuple(flags),
        notes=tuple(_notes(at, own, others, by_hand=by_hand)),
        documents=(endpoint_slice(at, address.version), endpoints(at)),
        by_hand=by_hand,
    )


def _notes(
    at: HostPort, own: int, others: Sequence[IPv4Address | IPv6Address], *, by_hand: bool
) -> Sequence[str]:
    named = " and ".join((at.host, *map(str, others)))
    notes = [
        f"kube-apiserver's certificate must have {named} among its names, because kubelets"
        " connect to it (kubeadm: apiServer.certSANs).",
        *(
            f"kube-apiserver advertises one address, {at.host}, and the kubernetes Service has the"
            f" family of that address: {other} is for kubelets and other clients that are"
            " configured with it."
            for other in others
        ),
        "Every kube-apiserver of the cluster gets the same flags.",
    ]
    if at.port != own:
        notes.append(
            f"The agent's local port is {at.port} and kube-apiserver's {own}: the reconciler would"
            f" write {own}, so it is turned off."
        )
    if by_hand:
        notes.append(
            "Apply the manifests once (kubectl apply). kube-apiserver leaves them alone from then"
            " on; to roll back, remove the flag, and the reconciler replaces them."
        )
    else:
        notes.append(
            "The manifests below are what kube-apiserver writes by itself: nothing to apply."
        )
        notes.append(
            "With several kube-apiservers, each that stops takes the one address away until another"
            f" writes it again, up to ten seconds later. {_NONE} (here: --by-hand) avoids that."
        )
    return notes


def endpoint_slice(at: HostPort, version: int) -> dict[str, Any]:
    """The EndpointSlice of the kubernetes Service."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": _NAME,
            "namespace": _NAMESPACE,
            "labels": {"kubernetes.io/service-name": _NAME},
        },
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [at.host], "conditions": {"ready": True}}],
        "ports": [{"name": _PORT_NAME, "port": at.port, "protocol": "TCP"}],
    }


def endpoints(at: HostPort) -> dict[str, Any]:
    """The Endpoints of the kubernetes Service, for clients that still read them."""
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": _NAME,
            "namespace": _NAMESPACE,
            # Without this label a controller creates a second EndpointSlice from it.
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [
            {
                "addresses": [{"ip": at.host}],
                "ports": [{"name": _PORT_NAME, "port": at.port, "protocol": "TCP"}],
            }
        ],
    }
