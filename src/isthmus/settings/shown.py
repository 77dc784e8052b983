"""The flags of a running program as an operator may see them: as they would be typed, no secrets.

What is secret in a value is blanked: users and passwords in URLs, and queries that say what they
are. Files are named, never read.
"""

from __future__ import annotations

import re
from typing import Any

from isthmus.settings.options import Kind, Option, options_of, value_text

BLANK = "[redacted]"
# What comes before the last @ of a URL. A password may have any sign in it, also one that ought to
# have been written otherwise, as / or #: everything from the scheme to the @ goes.
_USERINFO = re.compile(r"(?<=://)(?:(?!://)\S)*(?=@)")
# The same where the scheme is left out, as in proxy variables: user:password@host.
_BARE = re.compile(r"^(?!\S*://)[^/\s=;:]*+:\S*(?=@)")
_SECRET = re.compile(
    r"(?<=[?&;#])(?=[^=&;?#]*?(?:token|secret|password|passwd|authorization|api_?key))"
    r"([^=&;?#]++)=[^&;\s]*",
    re.IGNORECASE,
)


def shown_flags(settings: object) -> dict[str, dict[str, Any]]:
    """Give each flag of the settings by name: its ``value``, and whether it was ``given``.

    A value is a text, or a list of texts where a flag may be repeated.
    """
    given: frozenset[str] = getattr(settings, "flags_given", frozenset())
    found: dict[str, dict[str, Any]] = {}
    for declared in options_of(type(settings)):
        value = declared.value_in(settings)
        was_given = declared.attribute in given or value != declared.default
        found[declared.flag] = {"value": _text(declared, value), "given": was_given}
    return found


def _text(declared: Option, value: object) -> str | list[str]:
    if declared.kind is Kind.LIST and declared.repeat and isinstance(value, tuple):
        return [blanked(str(each)) for each in value]
    return blanked(value_text(declared, value))


def blanked(text: str) -> str:
    """Take away what is secret in a value."""
    text = _USERINFO.sub(BLANK, text)
    text = _BARE.sub(BLANK, text)
    return _SECRET.sub(rf"\1={BLANK}", text)
