"""Work grows with its input and no faster, whatever a peer sends: the one test that measures time.

Quadratic work hides inside single calls, of a regular expression or of a library, so that counting
calls cannot see it. CPU time of one thread, the least of five, for four times as many bytes of the
worst input we know is at most six times that for one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = Path(__file__).parent / "measure.py"
MOST_RATIO = 6.0


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_four_times_the_bytes_cost_at_most_six_times_as_much(tmp_path: Path) -> None:
    """In a process of its own, so that no other test's threads and garbage are in it."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(MEASURE)], capture_output=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    slow = {name: row for name, row in found["rows"].items() if row["ratio"] > MOST_RATIO}
    assert not slow, slow
    # The measure sees what was quadratic here once.
    unseen = {name: row for name, row in found["broken"].items() if row["ratio"] <= MOST_RATIO}
    assert not unseen and len(found["broken"]) == 2, unseen
