"""The image of deploy/container: built instruction by instruction, and run as a cluster runs it.

Without a container engine: lab/kubernetes/layers.py reads the Containerfile and does what it says.
The base is Debian by mmdebstrap, a container a chroot in a mount namespace, with a root that nobody
can write to and the image's own user.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from clients import LIMIT_S, connect_uds, echo_target, tunnel
from stack import wait_until
from wheels import ROOT, build_wheel

from isthmus import __version__
from isthmus.lab.kubernetes import archive
from isthmus.lab.kubernetes.layers import Builder, Image, cache, command, why_not
from isthmus.lab.kubernetes.programs import NotBuiltError
from isthmus.tools.pki import making as pki

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(1800)]
#: What a shell would be, hidden.
NO_SHELL = [("/dev/null", f"/usr/bin/{name}", "ro") for name in ("dash", "bash")]
#: Targets of the Containerfile, and flags that the program of each has.
KONNECTIVITYS = {"proxy-server": "--cluster-ca-cert", "proxy-agent": "--proxy-server-host"}
MIB = 1024 * 1024
#: A third more than it is: then something came along that nobody wanted.
MOST_BYTES = 350 * MIB


def mounts() -> list[str]:
    """Those of images; other tests mount at the same time."""
    found = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in found if str(cache()) in line]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    """The image that is built without a target, and those of konnectivity's names."""
    if why_not():
        pytest.skip(why_not())
    before = mounts()
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(ROOT / "deploy" / "container", context / "deploy" / "container")
    build_wheel(context / "dist")
    builder = Builder(context, {"VERSION": __version__})
    try:
        image = builder.build(ROOT / "deploy" / "container" / "Containerfile")
    except NotBuiltError as error:
        if "network" in str(error):
            pytest.skip(str(error))
        raise
    yield {"": image, **{name: builder.target(name) for name in KONNECTIVITYS}}
    assert mounts() == before


@pytest.fixture(scope="module")
def image(built: dict[str, Image]) -> Image:
    return built[""]


def run(
    image: Image,
    *argv: str,
    owner: tuple[int, int] | None = None,
    binds: Sequence[tuple[str, str, str]] = (),
) -> subprocess.CompletedProcess[str]:
    words, plan = command(
        image.layers, argv, environment=image.environment, owner=owner or image.owner,
        binds=[*binds, *NO_SHELL],
    )  # fmt: skip
    return subprocess.run(
        words, input=plan.decode(), capture_output=True, text=True, timeout=LIMIT_S
    )


def test_what_it_says_about_itself(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    assert image.user == "65532:65532"
    assert image.entrypoint == ["/isthmus"]
    assert image.stop_signal == "SIGTERM"
    assert set(image.ports) == set(range(8090, 8096))
    assert image.labels["org.opencontainers.image.version"] == __version__
    sizes = image.sizes()
    with capsys.disabled():
        parts = " + ".join(f"{size / MIB:.0f}" for size in sizes if size > MIB)
        print(f"\nimage: {sum(sizes) / MIB:.0f} MiB ({parts})")
    assert sum(sizes) < MOST_BYTES


def test_konnectivitys_names_start_our_programs(image: Image) -> None:
    assert run(image, "/isthmus", "--version").stdout == f"isthmus {__version__}\n"
    server = run(image, "/proxy-server", "--help")
    assert server.returncode == 0 and "--cluster-ca-cert" in server.stdout, server.stderr
    agent = run(image, "/proxy-agent", "--help")
    assert agent.returncode == 0 and "--proxy-server-host" in agent.stdout, agent.stderr
    wrong = run(image, "/proxy-server", "--no-such-flag")
    assert (wrong.returncode, wrong.stderr) == (2, "isthmus: unknown flag --no-such-flag\n")


@pytest.mark.parametrize("name", KONNECTIVITYS)
def test_a_target_needs_no_command(name: str, image: Image, built: dict[str, Image]) -> None:
    """Manifests that leave ``command`` to the image, as k0s's does, name one of these."""
    found = built[name]
    assert found.entrypoint == [f"/{name}"]
    # Nothing but the entry point differs: one build, three names.
    assert replace(found, entrypoint=image.entrypoint) == image
    shown = run(found, *found.entrypoint, "--help")
    assert shown.returncode == 0 and KONNECTIVITYS[name] in shown.stdout, shown.stderr


def test_nothing_can_be_written_and_nothing_has_to_be(image: Image) -> None:
    python = "/opt/isthmus/bin/python3"
    done = run(image, python, "-c", "open('/opt/isthmus/x', 'w')", owner=(0, 0))
    assert "Read-only file system" in done.stderr
    program = (
        "import isthmus.programs.agent.program as it, os; print(os.path.exists(it.__cached__))"
    )
    assert run(image, python, "-P", "-c", program).stdout == "True\n"
    # Flags 1: by hash, and never checked (PEP 552).
    compiled = (
        "import isthmus.programs.agent.program as it; print(open(it.__cached__, 'rb').read(8)[4])"
    )
    assert run(image, python, "-P", "-c", compiled).stdout == "1\n"


@pytest.mark.parametrize("tool", ["nft", "iptables", "ipset", "conntrack"])
def test_what_programs_a_node_is_there(tool: str, image: Image) -> None:
    found = f"import shutil; print(shutil.which({tool!r}))"
    assert run(image, "/opt/isthmus/bin/python3", "-c", found).stdout == f"/usr/sbin/{tool}\n"


def test_no_tool_of_the_build_is_left(image: Image) -> None:
    done = run(image, "/usr/bin/python3", "-c", "import pip")
    assert "No module named 'pip'" in done.stderr


class Container:
    """A program of the image, with directories from outside."""

    def __init__(
        self, image: Image, argv: Sequence[str], *, binds: list[tuple[str, str, str]], log: Path
    ) -> None:
        self._log = log
        words, plan = command(
            image.layers, argv, environment=image.environment, owner=image.owner,
            binds=[*binds, *NO_SHELL],
        )  # fmt: skip
        with log.open("wb") as file:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=file)
        assert self.process.stdin is not None
        self.process.stdin.write(plan)
        self.process.stdin.close()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self.process.poll() is not None, text)
        assert text in self.log, self.log

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)


@pytest.fixture
def outside(image: Image, certificates: pki.PkiFiles) -> Iterator[Path]:
    """Certificates and a directory for a socket that the image's user may use."""
    directory = Path(tempfile.mkdtemp(prefix="isthmus-"))
    directory.chmod(0o755)
    shutil.copytree(certificates.directory, directory / "pki")
    (directory / "sockets").mkdir()
    for path in [directory / "sockets", directory / "pki", *(directory / "pki").iterdir()]:
        os.chown(path, *image.owner)
    yield directory
    shutil.rmtree(directory)


def test_a_request_goes_through_a_server_and_an_agent(image: Image, outside: Path) -> None:
    binds = [
        (str(outside / "pki"), "/pki", "ro"),
        (str(outside / "sockets"), "/sockets", "rw"),
    ]
    server = Container(
        image,
        [
            "/proxy-server", "--mode=http-connect", "--uds-name=/sockets/s.sock", "--server-port=0",
            "--cluster-cert=/pki/server.crt", "--cluster-key=/pki/server.key",
            "--cluster-ca-cert=/pki/ca.crt", "--agent-port=0", "--agent-bind-address=127.0.0.1",
            "--health-port=0", "--health-bind-address=127.0.0.1", "--admin-port=0",
        ],
        binds=binds, log=outside / "server.log",
    )  # fmt: skip
    started = [server]
    try:
        server.wait_log("serving ")
        port = server.log.partition("agent_port=")[2].split()[0]
        agent = Container(
            image,
            [
                "/proxy-agent", "--proxy-server-host=127.0.0.1", f"--proxy-server-port={port}",
                "--ca-cert=/pki/ca.crt", "--agent-cert=/pki/agent.crt",
                "--agent-key=/pki/agent.key", "--health-server-host=127.0.0.1",
                "--health-server-port=0", "--admin-server-port=0",
            ],
            binds=binds, log=outside / "agent.log",
        )  # fmt: skip
        started.append(agent)
        agent.wait_log("linked ")
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        assert "Uid:\t65532\t65532" in status and "CapEff:\t0000000000000000" in status
        socket = str(outside / "sockets" / "s.sock")
        with echo_target() as target, tunnel(connect_uds(socket), target.name) as client:
            client.send(b"through the image")
            assert client.read_exactly(17) == b"through the image"
        for container in reversed(started):
            container.process.send_signal(signal.SIGTERM)
            assert container.process.wait(LIMIT_S) == 0, container.log
    finally:
        for container in started:
            container.end()


def test_a_key_that_is_roots_is_one_sentence(image: Image, outside: Path) -> None:
    """Manifests that count on root, as konnectivity's image is, and name no user."""
    os.chown(outside / "pki" / "server.key", 0, 0)
    (outside / "pki" / "server.key").chmod(0o600)
    done = run(
        image, "/proxy-server", "--uds-name=/sockets/s.sock", "--server-port=0", "--agent-port=0",
        "--cluster-cert=/pki/server.crt", "--cluster-key=/pki/server.key",
        "--cluster-ca-cert=/pki/ca.crt", "--health-port=0", "--admin-port=0",
        binds=[(str(outside / "pki"), "/pki", "ro"), (str(outside / "sockets"), "/sockets", "rw")],
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "/pki/server.key" in done.stderr, done.stderr
    assert "ermission denied" in done.stderr


def names_in(layer: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return tar.getnames()


def test_the_archive_has_what_it_lists(image: Image, tmp_path: Path) -> None:
    first, again = tmp_path / "first.tar", tmp_path / "again.tar"
    for path in (first, again):
        archive.write([(image, ["localhost/isthmus:1"])], path, made_at=315532800)
    assert first.read_bytes() == again.read_bytes()
    with tarfile.open(first) as tar:

        def read(blob: str) -> bytes:
            file = tar.extractfile(f"blobs/{blob.replace(':', '/')}")
            assert file is not None
            data = file.read()
            assert blob == f"sha256:{hashlib.sha256(data).hexdigest()}"
            return data

        index = tar.extractfile("index.json")
        assert index is not None
        (listed,) = json.load(index)["manifests"]
        manifest = json.loads(read(listed["digest"]))
        layers = [read(each["digest"]) for each in manifest["layers"]]
        configuration = json.loads(read(manifest["config"]["digest"]))
        assert configuration["config"]["Entrypoint"] == ["/isthmus"]
    names = [name for layer in layers[1:] for name in names_in(layer)]
    assert "opt/isthmus/bin/isthmus" in names
    lists = [name for name in names if name.startswith("var/lib/apt/lists/")]
    assert all(Path(name).name.startswith(".wh.") for name in lists), "they were removed"
    if shutil.which("skopeo"):  # a reader that is not ours
        argv = ["skopeo", "copy", f"oci-archive:{first}", f"dir:{tmp_path / 'read'}"]
        subprocess.run(argv, check=True, capture_output=True, timeout=LIMIT_S)
