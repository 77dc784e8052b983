"""Scenarios that break things on purpose and count what was lost.

``make hold`` runs them, docs/hold.md describes each. Processes, certificates and machine details
come from bench/, whose modules are flat: this file makes them importable.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench"))
