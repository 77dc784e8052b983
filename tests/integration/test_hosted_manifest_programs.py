"""What the manifests of a node's apiserver proxy say, done: with their capabilities alone."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
import yaml
from clients import LIMIT_S, Client, Target, free_port
from forked import run
from own_network import needs_root, own_network
from programs import COMMAND, ENVIRONMENT
from stack import http_get, wait_until

pytestmark = needs_root

ADDRESS = "172.20.0.1"
CONFIG = "/etc/kubernetes/apiserver-proxy-config/apiserver-proxy.yaml"
NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


def setpriv(capabilities: list[str], *who: str) -> list[str]:
    """Run what follows with these capabilities, and as somebody else if that is said."""
    some = ",".join(["-all", *(f"+{each.lower()}" for each in capabilities)])
    kinds = ("bounding-set", "inh-caps", "ambient-caps")
    return ["setpriv", *(f"--{kind}={some}" for kind in kinds), *who, "--no-new-privs"]


def write(*args: str) -> str:
    done = run("manifest", "apiserver-proxy", *args, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def addresses() -> str:
    argv = ["ip", "-j", "address", "show", "dev", "lo"]
    found = json.loads(
        subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=True).stdout
    )
    return json.dumps(found[0]["addr_info"])


class Proxy:
    """The proxy of a manifest."""

    def __init__(self, before: list[str], args: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*before, *COMMAND, *args], stderr=file, env=ENVIRONMENT, cwd="/"
            )

    def __enter__(self) -> Proxy:
        try:
            wait_until(
                lambda: "serving" in self.log or self._process.poll() is not None,
                "the proxy serves",
            )
            assert "serving" in self.log, self.log
        except BaseException:  # then nothing else would end it
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LIMIT_S)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(LIMIT_S) == 0, self.log


def check_it_carries(target: Target, port: int) -> None:
    with Client(socket.create_connection((ADDRESS, port), LIMIT_S)) as client:
        client.send(b"through")
        while True:
            with target.accept() as far:
                got = far.sock.recv(7)
                if got:  # else it was a health check, which says nothing
                    assert got == b"through"
                    return


def flags(target: Target, health: int, port: int) -> list[str]:
    return [
        f"--upstream={target.name}", "--health-check=tcp", f"--health-port={health}",
        f"--admin-port={free_port()}", f"--listen={ADDRESS}:{port}",
        "--health-check-interval=100ms", "--health-check-fall=1",
    ]  # fmt: skip


@pytest.mark.parametrize("port", [6443, 443])
def test_a_static_pod_is_well_while_the_apiserver_is_not(port: int, tmp_path: Path) -> None:
    health = free_port()
    with Target() as target:
        pod = yaml.safe_load(write("--as=static-pod", *flags(target, health, port)))
        (container,) = pod["spec"]["containers"]
        context = container["securityContext"]
        before = setpriv(context["capabilities"]["add"])
        with Proxy(before, container["args"], tmp_path / "proxy.log") as proxy:
            assert ADDRESS in addresses()
            check_it_carries(target, port)
            target.__exit__()
            wait_until(lambda: http_get(health, "/readyz")[0] == 500, "it sees the outage")
            for probe in ("livenessProbe", "readinessProbe"):
                asked = container[probe]["httpGet"]
                assert (asked["host"], asked["port"]) == ("127.0.0.1", health)
                assert http_get(health, asked["path"])[0] == 200
            proxy.stop()
    assert ADDRESS not in addresses()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that others may read: those of pytest are for their owner."""
    with tempfile.TemporaryDirectory(prefix="isthmus-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def test_ignition_and_its_unit_as_a_user_with_one_capability(public: Path, tmp_path: Path) -> None:
    probe = [*setpriv([], *NOBODY), *COMMAND, "--version"]
    run = subprocess.run(probe, capture_output=True, env=ENVIRONMENT, cwd="/", timeout=LIMIT_S)
    if run.returncode:
        pytest.skip("others than root cannot run this Python")
    health = free_port()
    with Target() as target:
        document = json.loads(write("--as=ignition", *flags(target, health, 6443)))
        (file,) = document["storage"]["files"]
        config = public / "apiserver-proxy.yaml"
        config.write_bytes(unquote_to_bytes(file["contents"]["source"].removeprefix("data:,")))
        config.chmod(0o644)
        (unit,) = document["systemd"]["units"]
        lines = unit["contents"].replace("\\\n", " ").splitlines()
        (start,) = [line for line in lines if line.startswith("ExecStart=")]
        (allowed,) = [line for line in lines if line.startswith("AmbientCapabilities=")]
        args = [word.replace(CONFIG, str(config)) for word in shlex.split(start)[1:]]
        capabilities = [each.removeprefix("CAP_") for each in allowed.partition("=")[2].split()]
        assert capabilities == ["NET_ADMIN"]
        before = setpriv(capabilities, *NOBODY)
        with Proxy(before, args, tmp_path / "proxy.log") as proxy:
            assert ADDRESS in addresses()
            check_it_carries(target, 6443)
            proxy.stop()
    assert ADDRESS not in addresses()
