"""The archive of a support bundle: everything that remote support needs, and no secrets.

bundle_parts.py collects the parts; this module limits, cleans, lists and packs them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from isthmus import __version__
from isthmus.tools.doctor.bundle_parts import BundlePart, MissingError
from isthmus.tools.doctor.bundle_secrets import Scrubber

MOST_BYTES_EACH = 8 * 1024 * 1024
MOST_BYTES = 64 * 1024 * 1024
#: The top directory of the archive, and the list of its content.
TOP, MANIFEST = "isthmus-support", "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file of the archive."""

    name: str
    content: bytes = field(repr=False)
    cut: bool = False

    def to_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        return {
            "name": self.name,
            "bytes": len(self.content),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "cut": self.cut,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The collected files, and by name the missing ones with the reason."""

    created: datetime
    members: tuple[Member, ...]
    missing: tuple[tuple[str, str], ...]
    removed: int

    def manifest(self) -> dict[str, Any]:
        """The content, for people and programs."""
        return {
            "kind": "SupportBundle",
            "version": __version__,
            "created": self.created.isoformat(timespec="seconds"),
            "secretsRemoved": self.removed,
            "members": [member.to_json() for member in self.members],
            "missing": [{"name": name, "why": why} for name, why in self.missing],
        }

    def to_bytes(self) -> bytes:
        """Pack the archive; the same members at the same time give the same bytes."""
        packed = io.BytesIO()
        seconds = int(self.created.timestamp())
        text = json.dumps(self.manifest(), indent=2, ensure_ascii=False) + "\n"
        manifest = Member(name=MANIFEST, content=text.encode())
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=seconds) as squeezed,
            tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for member in (manifest, *self.members):
                entry = tarfile.TarInfo(f"{TOP}/{member.name}")
                entry.size, entry.mtime, entry.mode = len(member.content), seconds, 0o600
                archive.addfile(entry, io.BytesIO(member.content))
        return packed.getvalue()


def collect(parts: Iterable[BundlePart], scrubber: Scrubber, *, created: datetime) -> Bundle:
    """Collect every part, without secrets and within limits; the manifest names missing ones."""
    members: list[Member] = []
    missing: list[tuple[str, str]] = []
    left = MOST_BYTES
    for part in parts:
        try:
            member = _member(part, scrubber, min(MOST_BYTES_EACH, left))
        except MissingError as error:
            missing.append((part.name, scrubber.clean(str(error))))
            continue
        left -= len(member.content)
        members.append(member)
    return Bundle(
        created=created,
        members=tuple(sorted(members, key=_name)),
        missing=tuple(sorted(missing)),
        removed=scrubber.removed,
    )


def _name(member: Member) -> str:
    return member.name


def _member(part: BundlePart, scrubber: Scrubber, most: int) -> Member:
    if not most:
        raise MissingError(f"the bundle already has {MOST_BYTES >> 20} MiB")
    try:
        text = part.get()
    except MissingError:
        raise
    except Exception as error:  # a failure in one part must not prevent the others
        raise MissingError(f"{type(error).__name__}: {error}") from error
    clean = scrubber.clean(text)
    if scrubber.leaks(clean):
        raise MissingError("withheld: a secret of this machine is still in it")
    content = clean.encode("utf-8", "replace")
    return Member(name=part.name, content=content[:most], cut=len(content) > most)


def described(bundle: Bundle) -> Sequence[str]:
    """The content as lines for people: one for each directory, then the missing parts."""
    counts: dict[str, list[Member]] = {}
    for member in bundle.members:
        counts.setdefault(member.name.rpartition("/")[0] or ".", []).append(member)
    found = [
        f"{place}/: {', '.join(member.name.rpartition('/')[2] for member in members)}"
        for place, members in counts.items()
    ]
    found += [f"missing {name}: {why}" for name, why in bundle.missing]
    return found
