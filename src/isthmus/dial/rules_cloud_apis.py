"""Which names are APIs of cloud providers, and are connected to from here and not by the tunnel.

Today's list is that of HyperShift's sidecars; Google's and China's names are ours. A suffix begins
with a dot, so that ``azure.com`` and ``notazure.com`` are none of it. Names are compared without
regard to case and to a last dot, as DNS does (RFC 4343).
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.values import is_address

HYPERSHIFT_SUFFIXES = (
    ".amazonaws.com",
    ".c2s.ic.gov",
    ".hci.ic.gov",
    ".sc2s.sgov.gov",
    ".microsoftonline.com",
    ".azure.com",
    ".cloud.ibm.com",
)
GOOGLE_SUFFIXES = (".googleapis.com",)
CHINA_SUFFIXES = (
    ".amazonaws.com.cn",
    ".azure.cn",
    ".chinacloudapi.cn",
    ".microsoftonline.cn",
)
SUFFIXES = (*HYPERSHIFT_SUFFIXES, *GOOGLE_SUFFIXES, *CHINA_SUFFIXES)


class CloudApis:
    """The suffixes of cloud APIs, and the hosts that are none whatever they end in."""

    def __init__(self, more: Iterable[str] = (), never: Iterable[str] = ()) -> None:
        """``more`` extends the list; each has a dot in front."""
        self._suffixes = (*SUFFIXES, *map(normal, more))
        self._never = frozenset(map(normal, never))

    def __repr__(self) -> str:
        return f"CloudApis({len(self._suffixes)} suffixes, {len(self._never)} hosts excluded)"

    def suffix_of(self, host: str) -> str:
        """The suffix that makes a host a cloud API; empty when it is none."""
        if is_address(host):
            return ""
        name = normal(host)
        if name in self._never:
            return ""
        return next((end for end in self._suffixes if name.endswith(end) and name != end), "")


def normal(name: str) -> str:
    """A name as names are compared: in lower case, without its last dot."""
    return name.lower().removesuffix(".")
