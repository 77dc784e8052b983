"""The command line of a program in a manifest: the given flags, quoted for their reader."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus.errors import ConfigError
from isthmus.settings.options import Kind, Option, options_of
from isthmus.text.suggestions import nearest

Given = Mapping[str, Sequence[str]]

#: The references allowed in the flags of a pod, and the field of the pod that each stands for.
REFERENCES: Mapping[str, str] = {
    "NODE_NAME": "spec.nodeName",
    "NODE_IP": "status.hostIP",
    "POD_NAME": "metadata.name",
    "POD_IP": "status.podIP",
}
# Valid values, so that settings can be checked before a pod exists; RFC 5737, RFC 3849.
_EXAMPLES = (
    ("ipv6=$(NODE_IP)", "ipv6=2001:db8::1"),
    ("$(NODE_IP)", "192.0.2.1"),
    ("[$(POD_IP)]", "[2001:db8::2]"),
    ("$(POD_IP)", "192.0.2.2"),
    ("$(NODE_NAME)", "node"),
    ("$(POD_NAME)", "pod"),
)
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_KNOWN = re.compile(rf"\$\(({'|'.join(REFERENCES)})\)|\$")


def with_examples(given: Given) -> Given:
    """The given values, with an example in place of each reference to a field of the pod."""
    return {attribute: tuple(map(_example, texts)) for attribute, texts in given.items()}


def _example(text: str) -> str:
    for reference, example in _EXAMPLES:
        text = text.replace(reference, example)
    return text


def references(given: Given) -> tuple[str, ...]:
    """The referenced fields of the pod, in the order of REFERENCES."""
    found = {
        name for texts in given.values() for text in texts for name in _REFERENCE.findall(text)
    }
    return tuple(name for name in REFERENCES if name in found)


def arguments(declared: Iterable[Option], given: Given) -> list[str]:
    """The given flags, one ``--flag=text`` each, in the order of the reference page.

    Flags that have no effect are left out.
    """
    return [
        f"--{option.flag}={text}"
        for option in declared
        if not option.ignored and not option.inert
        for text in given.get(option.attribute, ())
    ]


def typed_flags(settings: type[Any], texts: Iterable[str], *, where: str) -> Given:
    """The values of texts such as ``--flag=value``, by attribute; ``where`` is their place in
    messages.

    Raises:
        ConfigError: a text is not a flag of the program, or has no value.
    """
    known: dict[str, Option] = {}
    for option in options_of(settings):
        known |= {f"--{name}": option for name in (option.flag, *option.aliases)}
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        flag, equals, value = text.partition("=")
        if flag not in known:
            raise ConfigError(f"{where}: unknown flag {flag}{nearest(flag, list(known))}")
        option = known[flag]
        if not equals and option.kind is not Kind.BOOL:
            raise ConfigError(f"{where}: {flag} needs a value, {flag}={option.takes}")
        before = found.get(option.attribute, ())
        found[option.attribute] = (*before, value if equals else "true")
    return found


def for_pod(words: Iterable[str]) -> list[str]:
    """The words as a container's args: Kubernetes reads $(NAME), and takes $$ for a dollar."""
    return [_KNOWN.sub(lambda found: found[0] if found[1] else "$$", word) for word in words]
