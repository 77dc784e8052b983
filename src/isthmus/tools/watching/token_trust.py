"""To whom a token may be shown that nobody named: whoever listens on a usual port and has it.

Any user of a machine can listen on the port of a program that does not run. What is sent there in
plain HTTP is theirs, so a token goes only to those who could read its file as well.
"""

from __future__ import annotations

import os
import pwd
import stat

from isthmus.tools.doctor.holders import users_of

_ROOT = 0


def may_be_shown(token_file: str, port: int) -> bool:
    """Whether everybody who listens on this port of the machine may read the file.

    False where nobody listens, or that cannot be told.
    """
    users = users_of(port)
    try:
        return bool(users) and all(_may_read(user, os.stat(token_file)) for user in users)
    except (OSError, ValueError):
        return False


def _may_read(user: int, file: os.stat_result) -> bool:
    if user in (_ROOT, os.geteuid(), file.st_uid) or file.st_mode & stat.S_IROTH:
        return True
    return bool(file.st_mode & stat.S_IRGRP) and file.st_gid in _groups(user)


def _groups(user: int) -> list[int]:
    try:
        known = pwd.getpwuid(user)
        return os.getgrouplist(known.pw_name, known.pw_gid)
    except (KeyError, OSError):
        return []
