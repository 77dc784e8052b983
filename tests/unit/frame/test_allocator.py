"""Blocks that are read and sent again and again are not faulted in again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As much as eight connections have on their way; in a process of its own, where the last blocks
# lie at the end of the heap.
SCRIPT = """
import resource, sys
from isthmus.frame.lifetime import settle_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def read_and_send():
    blocks = [bytes([number]) * 65536 for number in range(16)]
settle_memory()
read_and_send()
before = faults()
for _ in range(100):
    read_and_send()
print(faults() - before)
"""
PAGES = 100 * 16 * 16


@pytest.mark.parametrize("chosen", [False, True])
def test_free_blocks_are_kept_unless_the_environment_says_otherwise(chosen: bool) -> None:
    environ = {"MALLOC_TRIM_THRESHOLD_": "131072"} if chosen else {}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > PAGES // 2) is chosen
