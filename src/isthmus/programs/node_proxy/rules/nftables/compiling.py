"""Compiles the node proxy's nft transactions into netlink messages.

Only the part of nft's language that ruleset.py and base.py use is understood. nft itself is avoided
because it reads every table of the host before it writes to one, and crashes if a newer nft made a
set in any of them (kubernetes/kubernetes#136786). compiling_rules.py compiles rules. Text from a
detector of another package that is not understood raises ``ForeignRuleError``: it needs nft.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from isthmus.net.rules_nft_encoding import (
    CREATE,
    FAMILIES,
    HOOKS,
    NftBatch,
    NftMessage,
    attribute,
    comment,
    element,
    element_lists,
    name,
    nested,
    number,
    user_data,
)
from isthmus.programs.node_proxy.rules.nftables.compiling_rules import (
    PROTOCOLS,
    ForeignRuleError,
    RuleCompiler,
    RuleValueError,
    address_bytes,
    concatenated,
    port_bytes,
    verdict_of,
)

__all__ = ["ForeignRuleError", "RuleValueError", "compiled"]

_TOKEN = re.compile(r'"[^"]*"|[{};]|[^\s{};]+')
# Numbers and sizes of nft's data types; concatenated values are padded to four bytes.
_TYPES = {"ipv4_addr": (7, 4), "ipv6_addr": (8, 16), "inet_proto": (12, 1), "inet_service": (13, 2)}
_TYPE_BITS = 6
_VERDICT_TYPE = 0xFFFFFF00
_SET_FLAGS = {"dynamic": 0x20, "timeout": 0x10}
_MAP = 0x8
# Userdata that nft stores with a set: the byte order of its keys (2 is network), and its comment.
_KEY_ORDER, _SET_COMMENT = 0, 7
_NETWORK_ORDER, _NO_ORDER = b"\2\0\0\0", b"\0\0\0\0"

_Words = list[str]


def compiled(text: str) -> NftBatch:
    """Compile a transaction.

    Raises:
        ForeignRuleError: a line has a construct that the node proxy does not write.
        RuleValueError: a line has an invalid address, port or number. Both carry the line.
    """
    return _Compiler().compile(text)


class _Compiler:
    """The state of compiling one transaction."""

    def __init__(self) -> None:
        self._batch = NftBatch()
        self._line = 0
        self._commands: Mapping[tuple[str, str], Callable[[int, _Words], None]] = {
            ("add", "table"): self._add_table,
            ("delete", "table"): self._delete_table,
            ("flush", "table"): self._flush_table,
            ("add", "chain"): self._add_chain,
            ("delete", "chain"): self._delete_chain,
            ("flush", "chain"): self._flush_chain,
            ("add", "set"): self._add_set,
            ("add", "map"): self._add_set,
            ("delete", "set"): self._delete_set,
            ("delete", "map"): self._delete_set,
            ("flush", "set"): self._flush_set,
            ("flush", "map"): self._flush_set,
        }
        self._rules = RuleCompiler(self._batch)

    def compile(self, text: str) -> NftBatch:
        lines = iter(enumerate(text.splitlines(), 1))
        for at, line in lines:
            self._line = at
            words = line.split(" ", 5)
            try:
                match words:
                    case ["add", "rule", family, table, chain, rule]:
                        self._rules.add(family, table, chain, rule, line=at)
                    case ["add" | "delete" as verb, "element", family, table, container, "{"]:
                        self._elements(verb, _family(family), table, container, lines)
                    case [verb, kind, family, *_] if (verb, kind) in self._commands:
                        rest = _TOKEN.findall(line.split(" ", 3)[3])
                        self._commands[verb, kind](_family(family), rest)
                    case _:
                        raise ForeignRuleError(line)
            except (ForeignRuleError, RuleValueError) as exc:
                exc.rule = exc.rule or line
                raise
            except (IndexError, KeyError, ValueError) as exc:
                raise ForeignRuleError(line, rule=line) from exc
        return self._batch

    def _add(self, what: NftMessage, family: int, body: bytes, *, flags: int = 0) -> None:
        self._batch.add(what, family, body, line=self._line, flags=flags)

    # Tables.

    def _add_table(self, family: int, words: _Words) -> None:
        options = _options(words[1:], "comment")
        body = name(1, words[0]) + number(2, 0)
        if "comment" in options:
            body += attribute(6, user_data(comment(0, options["comment"][0])))
        self._add(NftMessage.NEW_TABLE, family, body)

    def _delete_table(self, family: int, words: _Words) -> None:
        self._add(NftMessage.DELETE_TABLE, family, name(1, words[0]))

    def _flush_table(self, family: int, words: _Words) -> None:
        self._add(NftMessage.DELETE_RULE, family, name(1, words[0]))

    # Chains.

    def _add_chain(self, family: int, words: _Words) -> None:
        body = name(1, words[0]) + name(3, words[1])
        options = _options(words[2:], "type", "comment")
        match options.get("type"):
            case None:
                pass
            case [kind, "hook", hook, "priority", priority] if hook in HOOKS:
                hooked = nested(4, number(1, HOOKS[hook]), number(2, int(priority)))
                body += name(7, kind) + hooked
            case other:
                raise ForeignRuleError(" ".join(other))
        if "comment" in options:
            body += attribute(12, user_data(comment(0, options["comment"][0])))
        self._add(NftMessage.NEW_CHAIN, family, body, flags=CREATE)

    def _delete_chain(self, family: int, words: _Words) -> None:
        self._add(NftMessage.DELETE_CHAIN, family, name(1, words[0]) + name(3, words[1]))

    def _flush_chain(self, family: int, words: _Words) -> None:
        self._add(NftMessage.DELETE_RULE, family, name(1, words[0]) + name(2, words[1]))

    # Sets and maps.

    def _add_set(self, family: int, words: _Words) -> None:
        options = _options(words[2:], "type", "flags", "timeout", "comment")
        types = options["type"]
        key, is_map = (types[:-2], True) if types[-2:] == [":", "verdict"] else (types, False)
        flags = _MAP if is_map else 0
        for flag in ",".join(options.get("flags", ())).split(","):
            if flag and flag not in _SET_FLAGS:
                raise ForeignRuleError(flag)
            flags |= _SET_FLAGS.get(flag, 0)
        body = name(1, words[0]) + name(2, words[1]) + number(3, flags) + _key_type(key[::2])
        if is_map:
            body += number(6, _VERDICT_TYPE) + number(7, 0)
        body += number(10, self._rules.next_set_id())
        if "timeout" in options:
            milliseconds = int(options["timeout"][0].removesuffix("s")) * 1000
            body += attribute(11, milliseconds.to_bytes(8, "big"))
        kept = [(_KEY_ORDER, _NETWORK_ORDER if len(key) == 1 else _NO_ORDER)]
        if "comment" in options:
            kept.append(comment(_SET_COMMENT, options["comment"][0]))
        self._add(NftMessage.NEW_SET, family, body + attribute(13, user_data(*kept)), flags=CREATE)

    def _delete_set(self, family: int, words: _Words) -> None:
        self._add(NftMessage.DELETE_SET, family, name(1, words[0]) + name(2, words[1]))

    def _flush_set(self, family: int, words: _Words) -> None:
        self._add(NftMessage.DELETE_ELEMENTS, family, name(1, words[0]) + name(2, words[1]))

    # Elements: one per line, so that an error can name the element.

    def _elements(
        self, verb: str, family: int, table: str, container: str, lines: Iterator[tuple[int, str]]
    ) -> None:
        head = name(1, table) + name(2, container)
        what = NftMessage.NEW_ELEMENTS if verb == "add" else NftMessage.DELETE_ELEMENTS
        flags = CREATE if verb == "add" else 0
        first = self._line + 1
        for listed, count in element_lists(self._listed(lines)):
            self._batch.add(what, family, head + listed, line=first, flags=flags)
            first += count

    def _listed(self, lines: Iterator[tuple[int, str]]) -> Iterator[bytes]:
        for at, line in lines:
            if line == "}":
                return
            self._line = at
            try:
                yield _element(line.removesuffix(","))
            except (ForeignRuleError, RuleValueError) as exc:
                exc.rule = line
                raise
        raise ForeignRuleError("elements without a closing brace")


def _element(line: str) -> bytes:
    """Compile ``KEY [comment "…"] [: VERDICT]``."""
    rest, colon, goes = line.rpartition(" : ")
    if not colon:
        rest, goes = line, ""
    key, commented, text = rest.partition(' comment "')
    user = user_data(comment(0, text[:-1])) if commented else b""
    parts = [_part(each) for each in key.split(" . ")]
    data = verdict_of(goes.split(" ")) if goes else b""
    return element(concatenated(parts) if len(parts) > 1 else parts[0], data=data, user=user)


def _part(text: str) -> bytes:
    if text in PROTOCOLS:
        return PROTOCOLS[text]
    return port_bytes(text) if text.isdigit() else address_bytes(text)


def _family(word: str) -> int:
    if word not in FAMILIES:
        raise ForeignRuleError(word)
    return FAMILIES[word]


def _key_type(names: _Words) -> bytes:
    total = size = 0
    for each in names:
        if each not in _TYPES:
            raise ForeignRuleError(each)
        number_of, bytes_of = _TYPES[each]
        total = total << _TYPE_BITS | number_of
        size += bytes_of if len(names) == 1 else (bytes_of + 3) & ~3
    return number(4, total) + number(5, size)


def _options(words: _Words, *known: str) -> dict[str, _Words]:
    """The options in braces: each word with what follows it up to a semicolon."""
    found: dict[str, _Words] = {}
    if not words:
        return found
    if words[0] != "{" or words[-1] != "}":
        raise ForeignRuleError(" ".join(words))
    option: _Words = []
    for word in words[1:-1]:
        if word != ";":
            option.append(word.strip('"'))
        elif option:
            if option[0] not in known:
                raise ForeignRuleError(option[0])
            found[option[0]], option = option[1:], []
    return found
