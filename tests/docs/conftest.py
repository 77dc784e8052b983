"""What the tests of the documents share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that the tests share
sys.path.append(str(Path(__file__).parents[1] / "unit"))  # odd_phrases
