"""Makes helpers importable: those of tests lie beside them, in folders named as in src/isthmus."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path (importlib mode), which leaves their own directories unsearched.
_HELPERS = (path for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
sys.path[:0] = sorted({str(path.parent) for path in _HELPERS if not path.name.startswith("test_")})
# The tools of a release and of the image, and what builds Helm; last, so that nothing is hidden.
_ROOT = Path(__file__).parents[2]
sys.path += [str(_ROOT / "tools"), str(_ROOT / "tests" / "interop")]
