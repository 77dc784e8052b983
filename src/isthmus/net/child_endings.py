"""How a child process ended, as text: an exit code, or the name of a signal.

A crash leaves nothing on standard error: without this it would read "exit code -11".
"""

from __future__ import annotations

import signal


def ending_of(code: int) -> str:
    """The meaning of a ``subprocess`` return code: ``exit code 1``, ``killed by SIGSEGV``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def was_killed(code: int) -> bool:
    """Whether a signal ended the process."""
    return code < 0
