"""What a certificate may be used for: an agent's is not for clients, nor a client's for agents.

Two authorities separate them best, and then these checks are not needed. If one authority signs for
all, names decide: those that an operator lists, or, without a list, the mark that certificates of
``isthmus pki`` carry as their organization. Certificates made elsewhere carry no mark and are
accepted for any role.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address

from isthmus.text.patterns import Pattern
from isthmus.values import Identity, is_address

_ORGANIZATION = "O="
_MAX_NAME_CHARS = 200
#: The kind of identities that TLS has proved; without a common name it proves other names only.
_BY_TLS = ("certificate", "none")


class Role(Enum):
    """The role that a certificate is for; the value is the organization that marks it."""

    AGENT = "isthmus:agents"
    CLIENT = "isthmus:clients"
    SERVER = "isthmus:servers"


_MARKS = frozenset(role.value for role in Role)
_ONE_OF = {Role.AGENT: "an agent", Role.CLIENT: "a client", Role.SERVER: "a server"}


@dataclass(frozen=True, slots=True)
class CertificateName:
    """A name that a certificate may have: ``edge-*`` is a common or alternative name, ``O=ops`` an
    organization; ``*`` stands for any characters.

    Raises:
        ValueError: the text is not a pattern; the message says why.
    """

    text: str
    _exact: Pattern = field(init=False, repr=False, compare=False)
    _folded: Pattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bare = self.text.removeprefix(_ORGANIZATION)
        object.__setattr__(self, "_exact", Pattern(bare))
        object.__setattr__(self, "_folded", Pattern(fold_san(bare)))
        if self._exact.placeholders:
            raise ValueError("cannot have {…}: nothing is proved yet that it could stand for")

    def covers(self, identity: Identity) -> bool:
        """Whether a certificate has such a name."""
        if self.text.startswith(_ORGANIZATION):
            return any(self._exact.covers(group, {}) for group in identity.groups)
        if identity.kind == "certificate" and self._exact.covers(identity.name, {}):
            return True
        return any(self._folded.covers(fold_san(san), {}) for san in identity.sans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admits:
    """The certificates that a port accepts: by ``names`` if there are any, else by their mark.

    ``flag`` is the flag that lists the names.
    """

    role: Role
    flag: str
    names: Sequence[CertificateName] = ()

    def refusal(self, identity: Identity) -> str:
        """Why an identity is refused in this role; empty if it is accepted.

        Only what TLS proved is checked: a token or a user of this machine has no role.
        """
        if identity.kind not in _BY_TLS:
            return ""
        if self.names:
            if any(name.covers(identity) for name in self.names):
                return ""
            return f"{_shown(identity)} is none of {self.flag}"
        marks = _MARKS.intersection(identity.groups)
        if not marks or self.role.value in marks:
            return ""
        theirs = " and ".join(_ONE_OF[role] for role in Role if role.value in marks)
        return (
            f"{_shown(identity)} has a certificate for {theirs}, not for {_ONE_OF[self.role]}"
            f" (O={self.role.value}, or {self.flag})"
        )


def admits(role: Role, flag: str, names: Iterable[str]) -> Admits:
    """Read names as flags list them.

    Raises:
        ValueError: a name is not a pattern; the message says which and why.
    """
    found = []
    for text in names:
        try:
            found.append(CertificateName(text))
        except ValueError as error:
            raise ValueError(f"{text!r} {error}") from error
    return Admits(role=role, flag=flag, names=tuple(found))


def _shown(identity: Identity) -> str:
    text = str(identity)
    shown = text if len(text) <= _MAX_NAME_CHARS else f"{text[: _MAX_NAME_CHARS - 1]}…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)


def fold_san(text: str) -> str:
    """A subject alternative name in its normal form; in URIs and mail addresses case matters."""
    if is_address(text):
        return str(ip_address(text))
    return text if "/" in text or "@" in text else text.lower().removesuffix(".")
