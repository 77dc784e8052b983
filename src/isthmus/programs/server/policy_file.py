"""The policy of --policy-file, read again when its file changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from isthmus.dial.rules_policy import Policy
from isthmus.errors import ConfigError
from isthmus.net.files import FollowedFile, read_text

_log = logging.getLogger("isthmus.server")


def follow_policy(
    path: str,
    on_failed: Callable[[], None],
    on_changed: Callable[[Policy], None] | None = None,
) -> FollowedFile[Policy]:
    """Read the policy; ask ``current`` of the answer for each dial.

    Tunnels that are open stay open whatever a new policy says. ``on_failed`` hears of each new
    state of the file that is bad, ``on_changed`` of each policy that is used from then on, the
    first one included.

    Raises:
        ConfigError: the file cannot be read or is wrong.
    """

    def taken(policy: Policy) -> None:
        if on_changed is not None:
            on_changed(policy)
        _log.info("reloaded %s", path)

    def failed(error: ConfigError) -> None:
        on_failed()
        _log.warning("%s; the policy read before stays in use", error)

    followed = FollowedFile(path, read_policy, taken=taken, failed=failed)
    if on_changed is not None:
        on_changed(followed.current)
    return followed


def read_policy(path: str) -> Policy:
    """Read a policy file.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from isthmus.dial.settings_policy import parse
    from isthmus.text.located_yaml import MAX_CHARS  # YAML is slow to import

    # One more than may be is told to be too long.
    return parse(read_text(path, what="--policy-file ", most_chars=MAX_CHARS + 1), path)


def current_of(file: FollowedFile[Policy] | None) -> Callable[[], Policy | None]:
    """How to ask for the policy of a file, or of none."""
    return (lambda: None) if file is None else (lambda: file.current)
