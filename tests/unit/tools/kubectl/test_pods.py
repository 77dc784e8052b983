"""Which pods run programs and where their admin ports are, out of a list of pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.manifests.pods import PROGRAM_LABEL, program_label
from isthmus.programs import programs
from isthmus.tools.kubectl.cluster import ALL, Cluster, ClusterFlags
from isthmus.tools.kubectl.rules_pods import PodPort, admin_ports, described


def pod(*containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A pod that runs, with these containers."""
    return {
        "metadata": {"name": "p", "namespace": "n", "annotations": {"secret": "annotated"}},
        "spec": {"nodeName": "node-1", "containers": list(containers)},
        "status": {"phase": "Running", **status},
    }


def container(*args: str, command: tuple[str, ...] = ("/isthmus",), **more: Any) -> dict[str, Any]:
    return {"name": "main", "command": list(command), "args": list(args), **more}


@pytest.mark.parametrize(
    ("one", "program", "port", "https"),
    [
        (container("server"), "server", 8095, False),
        (container("server", "--admin-port=9"), "server", 9, False),
        (container("server", "--admin-port", "9", "--admin-cert", "x"), "server", 9, True),
        (container("agent", "--admin-server-port=9"), "agent", 9, False),
        (container("agent", "--admin-server-port=9", "--admin-server-port=10"), "agent", 10, False),
        (container("agent", "--admin-server-port=$(PORT)"), "agent", 8094, False),
        (container(command=("python3", "/usr/bin/isthmus", "agent")), "agent", 8094, False),
        ({"name": "main", "args": ["agent", "--admin-cert="]}, "agent", 8094, False),
        (container("--admin-port=7", command=("/proxy-server",)), "server", 7, False),
        (container(command=("/proxy-agent",)), "agent", 8094, False),
    ],
)
def test_the_command_line_says_which_program_and_port(
    one: dict[str, Any], program: str, port: int, https: bool
) -> None:
    assert admin_ports([pod(one)]) == [
        PodPort(namespace="n", pod="p", program=program, port=port, https=https)
    ]


@pytest.mark.parametrize(
    "one",
    [
        container("nginx", command=("/bin/sh", "-c")),
        container("lab", "run"),
        {"name": "main"},
        container("node-proxy"),  # which has no admin port
    ],
)
def test_other_containers_are_left_out(one: dict[str, Any]) -> None:
    assert admin_ports([pod(one)]) == []


def test_every_program_with_an_admin_port_is_found_by_its_name() -> None:
    found = admin_ports([pod(container(it.name)) for it in programs()])
    expected = {it.name: it.admin_port for it in programs() if it.admin_port}
    assert {one.program: one.port for one in found} == expected


def test_two_programs_in_one_pod_and_servers_first() -> None:
    both = pod(container("socks5-proxy"), container("https-proxy"))
    server = pod(container("server"))
    found = [one.program for one in admin_ports([both, server])]
    assert found == ["server", "socks5-proxy", "https-proxy"]


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"phase": "Running"}, ""),
        ({"containerStatuses": [{"name": "main", "state": {"running": {}}}]}, ""),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
                ],
            },
            "ImagePullBackOff",
        ),
        (
            {"containerStatuses": [{"name": "main", "state": {"terminated": {"reason": "Error"}}}]},
            "Error",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes fit"}
                ],
            },
            "0/3 nodes fit",
        ),
        ({"phase": "Failed"}, "Failed"),
    ],
)
def test_what_does_not_run_says_why(status: dict[str, Any], trouble: str) -> None:
    (found,) = admin_ports([pod(container("agent"), **status)])
    assert trouble in found.trouble and bool(found.trouble) == bool(trouble)


def test_an_admin_port_that_is_off_is_told() -> None:
    (found,) = admin_ports([pod(container("server", "--admin-port=0"))])
    assert "switched off" in found.trouble


def test_the_description_has_no_arguments_environment_or_annotations() -> None:
    secret = container("agent", "--x=argued", env=[{"name": "A", "value": "of the environment"}])
    text = json.dumps(described([pod(secret)]))
    assert "node-1" in text
    assert not [word for word in ("argued", "of the environment", "annotated") if word in text]


def test_the_label_is_what_containers_run() -> None:
    socks5, https = container("socks5-proxy"), container("https-proxy")
    main = {"name": "main"}
    assert program_label([main, socks5, https]) == {PROGRAM_LABEL: "socks5-proxy_https-proxy"}


@pytest.mark.parametrize(
    ("flags", "everywhere", "shown"),
    [((), False, True), ((), True, False), (("--admin-cert=x",), True, True)],
)
def test_a_token_goes_over_tls_or_to_one_namespace(
    flags: tuple[str, ...],
    everywhere: bool,
    shown: bool,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "token").write_text("a-token-of-an-operator")
    (tmp_path / "kubectl").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    cluster = Cluster(chosen={ALL: everywhere}, _pods=[pod(container("server", *flags))])
    flags_given = ClusterFlags(cluster=cluster, token_file=str(tmp_path / "token"))
    (client,) = flags_given.clients()
    assert ("Authorization" in client._headers) == shown


def test_more_pods_than_are_asked_are_counted(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = container("agent")
    cluster = Cluster(most=2, _pods=[pod(agent), pod(agent), pod(container("server")), pod(agent)])
    assert [one.program for one in cluster.ports] == ["server", "agent"]
    assert capsys.readouterr().err.startswith("isthmus: 2 more")
