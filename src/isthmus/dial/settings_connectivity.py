"""Reading the configuration of the connectivity service, of either kind, into one model.

A text has one or several YAML documents, each a ConnectivityServiceConfiguration or an
EgressSelectorConfiguration; both kinds may be mixed. Every network is defined once, in
any document. All errors are reported at once, each as ``name:line:column: field: what``. Text is
passed in: connectivity_files.py opens files, and checks those that a configuration
names. Imports yaml, which is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from isthmus.dial import settings_connectivity_service as connectivity_service
from isthmus.dial import settings_egress_selector as egress_selector
from isthmus.dial.rules_connectivity import CONTROL_PLANE, MASTER, ConnectivityConfig
from isthmus.dial.settings_connectivity_fields import (
    BY_KIND,
    EGRESS,
    EGRESS_SELECTOR,
    DocumentKind,
    Draft,
)
from isthmus.text.addresses import IpNetwork
from isthmus.text.go_yaml import check_json, expand_merges
from isthmus.text.located_yaml import Errors, Located, compose_all, near, short

MAX_NETWORKS = 64

_EXPECTED = " or ".join(BY_KIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPart:
    """The contents of one text; its networks are valid only without ``errors``.

    ``kinds`` are the kinds of its documents, in order, each with its version. ``kube`` is what
    kube-apiserver reads from it, the first document, or None if that has another kind.
    """

    drafts: tuple[Draft, ...]
    kube: tuple[Draft, ...] | None
    kinds: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    errors: Errors


def read(text: str, *, name: str) -> ConnectivityConfig:
    """Read a configuration; ``name`` is its name in messages, usually a path.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    part = read_part(text, name=name)
    config = combine([part])
    part.errors.raise_any()
    return config


def read_part(text: str, *, name: str) -> DocumentPart:
    """Parse one text, and record its errors in the part.

    Raises:
        ConfigError: it is not YAML at all, or empty.
    """
    roots = compose_all(text, name, expected=f"a document of kind {_EXPECTED} is expected")
    drafts: list[Draft] = []
    kinds: list[tuple[str, str]] = []
    warnings: list[str] = []
    kube: tuple[Draft, ...] | None = None
    for number, root in enumerate(roots):
        expand_merges(root)
        kind = _kind(root)
        if kind is None:
            continue
        version = _version(root, kind)
        if kind is EGRESS:
            drafts += egress_selector.read_document(root)
            if number == 0:
                check_json(text, root)
                kube = tuple(drafts)
            else:
                warnings.append(f"{root.where}: kube-apiserver reads the first document only")
        else:
            drafts += connectivity_service.read_document(root)
        kinds.append((kind.name, version))
    return DocumentPart(
        drafts=tuple(drafts),
        kube=kube,
        kinds=tuple(kinds),
        warnings=(*warnings, *(warning for draft in drafts for warning in draft.warnings)),
        errors=roots[0].errors,
    )


def _kind(root: Located) -> DocumentKind | None:
    """The kind of a document; None without one, which is recorded as an error."""
    if not root.is_mapping:
        # Not the text itself: a wrong file may contain a token.
        what = "text" if root.is_text else root.kind
        root.error(f"must be a document of kind {_EXPECTED}, not {what}")
        return None
    found = _peek(root, "kind")
    if found is None:
        root.inside(root.node, "kind").error(f"is missing: {_EXPECTED}")
        return None
    text = found.text()
    if text is not None and text not in BY_KIND:
        found.error(f"must be {_EXPECTED}, not {short(text)}{near(text, BY_KIND)}")
    if text == EGRESS_SELECTOR:
        _check_stray_name(root)
    return BY_KIND.get(text or "")


def _version(root: Located, kind: DocumentKind) -> str:
    found = _peek(root, "apiVersion")
    text = found.text() if found is not None else None
    if found is not None and text is not None and text not in kind.versions:
        wanted = " or ".join(kind.versions)
        found.error(
            f"must be {wanted} for {kind.name}, not {short(text)}{near(text, kind.versions)}"
        )
    return text or ""


def _peek(root: Located, key: str) -> Located | None:
    for name, value in root.node.value:
        if isinstance(name, yaml.ScalarNode) and name.value == key:
            return root.inside(value, key)
    return None


def _check_stray_name(root: Located) -> None:
    """Remove a top-level name or metadata, and report it: published samples have them."""
    stray = [pair for pair in root.node.value if pair[0].value in ("name", "metadata")]
    for key, _ in stray:
        Located(key, "", root.errors).error(
            f"unknown key {short(key.value)}: delete it, the document itself has none"
            " (the networks' names are egressSelections[].name)"
        )
    root.node.value = [pair for pair in root.node.value if pair not in stray]


def combine(parts: Sequence[DocumentPart]) -> ConnectivityConfig:
    """Combine the networks of all parts; conflicts are recorded in the later part."""
    drafts: dict[str, Draft] = {}
    for draft in (draft for part in parts for draft in part.drafts if draft.network.name):
        name = draft.network.name
        same = CONTROL_PLANE if name == MASTER else name
        earlier = drafts.get(same)
        if earlier is not None:
            also = "" if earlier.network.name == name else ", which is the same network"
            place = f"{earlier.network.name} at {earlier.at.where}{also}"
            draft.at.error(f"{short(name)} is defined already: {place}")
        elif len(drafts) == MAX_NETWORKS:
            draft.at.error(f"more than {MAX_NETWORKS} networks")
            break
        else:
            drafts[same] = draft
    _check_overlaps(list(drafts.values()))
    _check_hosts(list(drafts.values()))
    return ConnectivityConfig(
        networks={draft.network.name: draft.network for draft in drafts.values()}
    )


def _check_overlaps(drafts: Sequence[Draft]) -> None:
    """Two CIDRs overlap only if one contains the other; sorted, containing ones come first."""
    every = [
        _Claim(cidr=one, order=order, at=at, owner=owner)
        for order, (owner, one, at) in enumerate(
            (draft.network.name, one, at) for draft in drafts for one, at in draft.cidrs
        )
    ]
    every.sort(key=lambda claim: (claim.cidr.version, *claim.bounds))
    holding: list[_Claim] = []
    for claim in every:
        while holding and not claim.cidr.overlaps(holding[-1].cidr):
            holding.pop()
        if holding:
            # The error is at the later of the two, and names the earlier.
            earlier, later = sorted((claim, holding[-1]), key=lambda one: one.order)
            place = f"{earlier.cidr} of network {earlier.owner} at {earlier.at.where}"
            later.at.error(f"{later.cidr} overlaps {place}")
        holding.append(claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A CIDR that a network claims, with its index."""

    cidr: IpNetwork
    order: int
    at: Located
    owner: str

    @property
    def bounds(self) -> tuple[int, int]:
        """The sort key that puts a CIDR after those that contain it."""
        return int(self.cidr.network_address), self.cidr.prefixlen


def _check_hosts(drafts: Sequence[Draft]) -> None:
    taken: dict[str, tuple[str, Located]] = {}
    for draft in drafts:
        for host, at in draft.hosts:
            owner, place = taken.setdefault(host, (draft.network.name, at))
            if place is not at:
                at.error(f"{short(host)} belongs to network {owner} already, at {place.where}")
