"""Makes the helpers of the parent directory importable by the tests of this one."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path (importlib mode), which leaves their own directories unsearched.
sys.path.insert(0, str(Path(__file__).parents[1]))
