"""The lab's tests run the command itself, as root, and look for what it leaves on the machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that the tests share


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is marked, and skipped where there can be no namespaces."""
    here = Path(__file__).parent
    reason = ""
    if os.geteuid() != 0:
        reason = "network namespaces need root"
    elif not shutil.which("ip"):
        reason = "network namespaces need ip, of iproute2"
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.lab)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
