"""A second process that takes a lab away when its maker ends, however that comes about.

``python -m isthmus.lab.guardian TOKEN`` waits for the end of its standard input, a pipe whose only
writer is the maker: even a maker that is killed closes it. The last byte read says whether the lab
is to stay. A child that the maker was just starting has the pipe too, until it has become another
program; so when the end comes, every process of the lab can be told by its mark.
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
    """The maker's side of it."""

    def __init__(self, token: str) -> None:
        self._token = token
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            module("isthmus.lab.guardian", token),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Ctrl-C and a closed terminal are for the maker, which is waited for.
            start_new_session=True,
            cwd="/",
            env=environment,
        )

    def keep(self) -> None:
        """Let the lab stay, and go."""
        self._tell(_KEEP)

    def finish(self) -> None:
        """Take the lab away, and wait until it is gone."""
        self._tell(b"")
        from isthmus.lab import removal  # slow to import, and hardly ever anything to do

        removal.remove(self._token)  # should somebody have killed the guardian

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
    """Wait for the maker's end, and clean up after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    token = sys.argv[1]
    from isthmus.lab import removal  # before it is needed: files may be gone by then

    if sys.stdin.buffer.read()[-1:] != _KEEP:
        removal.remove(token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
