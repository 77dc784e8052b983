"""The words after ``server`` and ``default-server`` in a haproxy.cfg.

settings_haproxy_cfg.py reads the rest of the file.

Sections (§) are those of haproxy's configuration manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isthmus.programs.apiserver_proxy.plan import read_tlv_type
from isthmus.text.located_yaml import near, short
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

MILLISECOND = 0.001
#: §2.5: a number without a unit is milliseconds.
_UNITS_S = {"us": 1e-6, "ms": MILLISECOND, "": MILLISECOND, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"([0-9]{1,12})(us|ms|s|m|h|d)?", re.ASCII)
#: §7.3: a sample expression that is only a text, as HyperShift writes it. Splitting the line into
#: words has removed the quotes of ``%[str("text")]``.
_STR = re.compile(r"%\[str\(([^\s,()\[\]\\%'\"]+)\)\]")
_TLV = re.compile(r"set-proxy-v2-tlv-fmt\(([^()]*)\)")
#: Settings for checks during failures and for TLS that make no difference here, and why.
_LEFT_OUT = {
    "weight": "isthmus takes the upstream with the fewest connections",
    "fastinter": "isthmus checks at once when a connection fails",
    "downinter": "isthmus uses one interval",
    "check-send-proxy": "checks say what connections say",
}
_FLAGS = {"check": "check", "check-ssl": "check_ssl", "send-proxy-v2": "send_proxy"}
_VALUED = ("inter", "fall", "rise", "ca-file", "verify", "check-sni")
_MAX_COUNT = 100


@dataclass(slots=True)
class HaproxyServer:
    """A server, or the defaults of all; settings that are not given are None, 0 or empty."""

    line: int = 0
    name: str = ""
    at: HostPort | None = None
    check: bool = False
    check_ssl: bool = False
    send_proxy: bool = False
    inter_s: float = 0.0
    fall: int = 0
    rise: int = 0
    ca: str = ""
    check_sni: str = ""
    tlvs: list[Tlv] = field(default_factory=list)

    def over(self, *defaults: HaproxyServer) -> HaproxyServer:
        """This server, with missing settings taken from the first of these that has them."""
        names = ("check", "check_ssl", "send_proxy", "inter_s", "fall", "rise", "ca", "check_sni",
                 "tlvs")  # fmt: skip
        made = HaproxyServer(self.line, self.name, self.at)
        for name in names:
            said = (getattr(one, name) for one in (self, *defaults))
            setattr(made, name, next(filter(None, said), getattr(made, name)))
        return made

    @property
    def shared(self) -> tuple[object, ...]:
        """The settings that all servers of a backend must share."""
        return (self.check, self.send_proxy, self.inter_s, self.fall, self.rise, self.ca,
                self.check_sni, self.tlvs)  # fmt: skip


def server_words(
    words: Sequence[str],
    into: HaproxyServer,
    *,
    wrong: Callable[[str, str], None],
    warn: Callable[[str], None],
) -> None:
    """Read the words after a server's address; errors name the word."""
    rest = iter(words)
    for word in rest:
        tlv = _TLV.fullmatch(word)
        if word in _FLAGS:
            setattr(
                into, {"check": "check", "check-ssl": "check_ssl"}.get(word, "send_proxy"), True
            )
        elif word in _LEFT_OUT:
            if word != "check-send-proxy":
                next(rest, "")
            warn(f"{word} is left out: {_LEFT_OUT[word]}")
        elif tlv or word in _VALUED:
            value = next(rest, None)
            if value is None:
                wrong(word, f"{short(word)} needs a value")
            elif tlv:
                _tlv(tlv[1], value, into, wrong)
            else:
                _valued(word, value, into, wrong, warn)
        else:
            known = (*_FLAGS, *_VALUED, *_LEFT_OUT, "set-proxy-v2-tlv-fmt")
            wrong(word, f"{short(word)} of a server cannot be converted{near(word, known)}")


def _valued(
    word: str,
    value: str,
    into: HaproxyServer,
    wrong: Callable[[str, str], None],
    warn: Callable[[str], None],
) -> None:
    if word == "inter":
        seconds = duration_s(value)
        if seconds is None or not MILLISECOND <= seconds <= 86400:
            wrong(value, f"{short(value)} is not a time from 1ms to 24h")
        else:
            into.inter_s = seconds
    elif word in ("fall", "rise"):
        count = number(value, 1, _MAX_COUNT)
        if count is None:
            wrong(value, f"{short(value)} is not a number from 1 to {_MAX_COUNT}")
        else:
            setattr(into, word, count)
    elif word == "verify":
        if value != "required":
            warn(f"verify {value} is left out: isthmus always verifies")
    elif word == "ca-file":
        into.ca = value
    else:
        try:
            HostPort(value, 1)
        except ValueError:
            wrong(value, f"{short(value)} is not a host name")
        else:
            into.check_sni = value


def _tlv(kind: str, value: str, into: HaproxyServer, wrong: Callable[[str, str], None]) -> None:
    constant = _STR.fullmatch(value)
    # §8.2.6: a percent sign begins a variable; two are one.
    text = constant[1] if constant else value.replace("%%", "")
    if "%" in text:
        wrong(value, f"{short(value)} is not a fixed text; nothing else can be converted")
        return
    try:
        text = constant[1] if constant else value.replace("%%", "%")
        into.tlvs.append(Tlv(read_tlv_type(kind), text.encode()))
    except ValueError as error:
        wrong(kind, f"{short(kind)} {error}")


def duration_s(text: str) -> float | None:
    """Read a time of haproxy (§2.5) in seconds; None if it is invalid."""
    match = _TIME.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS_S[match[2] or ""]


def number(text: str, low: int, high: int) -> int | None:
    """Read a number in a range; None if it is invalid."""
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        return None
    return int(text) if low <= int(text) <= high else None
