"""What is said of every wrong configuration, as looked at once. ISTHMUS_REGENERATE=1 says it anew.

Files named files-… are about files that they name, files named lost-KIND-… are good but cannot be
converted to that kind; all others are wrong in themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.dial import settings_connectivity_writing as writing
from isthmus.dial.connectivity_files import load
from isthmus.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden" / "config"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.yaml"))


def test_none_is_left_over() -> None:
    assert NAMES
    assert sorted(path.stem for path in GOLDEN.glob("*.err")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(ConfigError) as caught:
        config = load([f"{name}.yaml"], check_files=name.startswith("files-")).config
        if name.startswith("lost-egress-selector"):
            writing.to_egress_selector(config)
        elif name.startswith("lost-connectivity-service"):
            writing.to_connectivity_service(config)
    golden = GOLDEN / f"{name}.err"
    if os.environ.get("ISTHMUS_REGENERATE"):
        golden.write_text(f"{caught.value}\n", encoding="utf-8")
    assert f"{caught.value}\n" == golden.read_text(encoding="utf-8")
