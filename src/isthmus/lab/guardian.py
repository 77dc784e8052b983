"""A second process that removes a lab when its maker ends, in whatever way.

``python -m isthmus.lab.guardian TOKEN`` waits for the end of its standard input, a pipe whose only
writer is the maker: it closes even if the maker is killed. The last byte read tells whether the lab
is to be kept. A child that the maker has just forked also holds the pipe until its exec; so when
the pipe closes, every process of the lab carries the lab's mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from isthmus.lab.python import module
from isthmus.lab.state import MARK

_KEEP = b"k"
_FINISH_TIMEOUT_S = 30.0


class Guardian:
    """The maker's handle on its guardian."""

    def __init__(self, token: str) -> None:
        self._token = token
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            module("isthmus.lab.guardian", token),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Ctrl-C and a closed terminal are the maker's business; the guardian waits for it.
            start_new_session=True,
            cwd="/",
            env=environment,
        )

    def keep(self) -> None:
        """Keep the lab, and end."""
        self._tell(_KEEP)

    def finish(self) -> None:
        """Remove the lab, and wait until it is gone."""
        self._tell(b"")
        from isthmus.lab import removal  # slow to import, and rarely needed

        removal.remove(self._token)  # in case somebody killed the guardian

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(word)
            self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_FINISH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> int:
    """Wait for the maker's end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    token = sys.argv[1]
    from isthmus.lab import removal  # import early: the files may be gone later

    if sys.stdin.buffer.read()[-1:] != _KEEP:
        removal.remove(token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
