"""How a child process ended, in words: by itself with a code, or by a signal that is named.

A crash has nothing on its standard error: without this it would read "exit code -11".
"""

from __future__ import annotations

import signal


def ending_of(code: int) -> str:
    """Say what a return code of ``subprocess`` means: ``exit code 1``, ``killed by SIGSEGV``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def was_killed(code: int) -> bool:
    """Whether a signal ended it."""
    return code < 0
