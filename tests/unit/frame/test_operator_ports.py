"""The ports for operators, as far as a worker has to do with them: not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.frame.operator_ports import OperatorPorts
from isthmus.frame.part import Handed, WorkerSlot
from isthmus.logs import OncePer
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.options import compose


def test_a_worker_leaves_the_token_to_its_parent(tmp_path: Path) -> None:
    # It may be in a pipe, as a shell makes of <(command): who reads it first has it, and in another
    # process than the shell's own child there is none.
    settings = compose(SniRouterSettings, admin_token_file=str(tmp_path / "63"))
    OperatorPorts(
        settings, once=OncePer(), handed=Handed(WorkerSlot(index=0, count=1, program_id=""))
    )
    with pytest.raises(ConfigError, match="--admin-token-file"):
        OperatorPorts(settings, once=OncePer())
