"""What a worker of a server is told, out of what the server was told."""

from __future__ import annotations

from isthmus.frame.part import WorkerSlot
from isthmus.programs.server.doors import of_worker
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose

SLOT = WorkerSlot(index=1, count=2, program_id="a", audit="/dev/fd/9")


def test_its_own_id_and_so_many_servers_as_all_replicas_have_workers() -> None:
    made = of_worker(ServerSettings(server_count=3, max_connections=101), SLOT)
    assert made.server_id == "a-w1"
    assert made.announced_count == 6
    assert made.max_connections == 51
    assert SLOT.siblings == {"a-w0"}


def test_peers_have_as_many_workers_each_at_their_address() -> None:
    settings = compose(
        ServerSettings,
        server_id="a",
        peer_server=("a=10.0.0.1:8091", "b=10.0.0.2:8091"),
        audit_log_path="-",
    )
    made = of_worker(settings, SLOT)
    assert made.peer_server == ("b-w0=10.0.0.2:8091", "b-w1=10.0.0.2:8091")
    assert made.announced_count == 4
    assert made.audit.log_path == "/dev/fd/9"  # the parent writes the file
    assert made.audit.max_bytes == 0  # and rotates it


def test_without_a_limit_there_is_none() -> None:
    assert of_worker(ServerSettings(), SLOT).max_connections == 0
