"""Makes the helpers of this directory importable."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path.insert(0, str(Path(__file__).parent))
