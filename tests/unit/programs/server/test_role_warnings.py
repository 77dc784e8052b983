"""Names that tell roles apart: what flags go together, and who could pass for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.server.rules_role_warnings import role_warnings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import changed

TCP = ServerSettings(
    cluster_cert="c", cluster_key="k", cluster_ca_cert="agents",
    server_cert="c", server_key="k", server_ca_cert="clients",
)  # fmt: skip
UDS = replace(TCP, uds_name="/run/x.sock", server_cert="", server_key="", server_ca_cert="")
ADMIN = {"admin_cert": "c", "admin_key": "k"}
TOKENS = {
    "cluster_ca_cert": "", "agent_namespace": "n", "agent_service_account": "s",
    "authentication_audience": "a",
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "changes", "sentence"),
    [
        (UDS, {"client_names": ("a",)}, "--client-names needs --server-ca-cert"),
        (TCP, {**TOKENS, "agent_names": ("a",)}, "--agent-names needs --cluster-ca-cert"),
        (TCP, {"admin_client_names": ("a",)}, "--admin-client-names needs --admin-client-ca"),
        (TCP, {"agent_names": ("{node}",)}, "--agent-names: '{node}' cannot have"),
        (TCP, {"client_names": ("a?",)}, r"--client-names: 'a\?' has one of"),
        (
            TCP,
            {**ADMIN, "admin_client_ca": "x", "admin_client_names": ("O=",)},
            "--admin-client-names: 'O=' is empty",
        ),
    ],
)
def test_wrong_names_are_one_sentence(
    base: ServerSettings, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        changed(base, **changes).validate()


def read(path: str) -> frozenset[bytes]:
    """A file has the authorities that its name lists."""
    if path == "broken":
        raise ConfigError("broken")
    return frozenset(path.encode().split(b"+"))


ONE = {"server_ca_cert": "agents"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        (ONE, ["--client-names and --agent-names: an agent's certificate opens the frontend, and"]),
        ({"server_ca_cert": "clients+agents"}, ["--client-names and --agent-names"]),
        ({**ONE, "client_names": ("a",)}, ["without --agent-names: a client's certificate can"]),
        ({**ONE, "agent_names": ("a",)}, ["without --client-names: an agent's certificate opens"]),
        ({**ONE, "agent_names": ("a",), "client_names": ("b",)}, []),
        ({**ONE, "uds_name": "/run/x.sock"}, []),
        ({**TOKENS, "server_ca_cert": ""}, []),
        ({"server_ca_cert": "broken"}, []),
        ({"admin_client_ca": "agents"}, ["an agent's certificate opens the admin port"]),
        ({"admin_client_ca": "agents", "admin_client_names": ("ops",)}, []),
        ({"admin_client_ca": "clients"}, []),
        ({**ONE, "admin_client_ca": "agents"}, ["opens the frontend", "opens the admin port"]),
    ],
)
def test_who_could_pass_for_somebody_else(changes: dict[str, Any], said: list[str]) -> None:
    found = role_warnings(changed(TCP, **changes), read)
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence and sentence.endswith("docs/pki.md has the steps")
