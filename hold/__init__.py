"""Scenarios that break things on purpose and count what was lost: what holds, and what does not.

``make hold`` runs them, docs/hold.md says what each does. Processes, certificates of a run and what
the machine is come from bench/, whose modules are flat: this makes them importable.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench"))
