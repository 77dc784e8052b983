"""What is rendered, the kernel takes; and a packet meets the rules that explain says it meets."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from own_network import needs_root, own_network

from isthmus.cli.main import main

pytestmark = needs_root
LIMIT_S = 30.0
MAC = "02:00:00:00:00:01"
MANIFESTS = Path(__file__).parents[1] / "golden" / "node_proxy" / "before.yaml"
FLAGS = (f"--manifests={MANIFESTS}", "--detect-local=node-cidr", "--family=IPv4")
PLAIN = """
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.180.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.20
  ports: [{name: web, port: 80, nodePort: 30080, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: web, port: 8080, protocol: UDP}]
endpoints:
- {addresses: [10.180.0.5], nodeName: node-1}
- {addresses: [10.180.1.6], nodeName: node-2}
- {addresses: [10.180.2.6], nodeName: node-3}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.21
  ports: [{name: web, port: 80, nodePort: 30081, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: near, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.22
  externalTrafficPolicy: Local
  ports: [{name: web, port: 80, nodePort: 30082, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: near-1, namespace: shop, labels: {kubernetes.io/service-name: near}}
addressType: IPv4
ports: [{name: web, port: 8080, protocol: UDP}]
endpoints: [{addresses: [192.0.2.1], nodeName: node-1}]
"""
Met = Counter[tuple[str, str, int]]


def run(*command: str, given: str = "") -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["node-proxy", "render", *flags]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables")
def test_the_kernel_takes_what_is_rendered_for_iptables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = rendered(capsys, *FLAGS)
    with own_network():
        run("iptables-restore", "--noflush", given=text)
        saved = run("iptables-save")
    for line in text.splitlines():
        if line.startswith("-A"):
            assert line.split()[1] in saved
    assert saved.count("\n-A ") == text.count("\n-A ") + text.count("\n-I ")


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft")
@pytest.mark.parametrize("detector", ["node-cidr", "bridge"])
def test_the_kernel_takes_what_is_rendered_for_nftables(
    detector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (*FLAGS, "--proxy-mode=nftables", f"--detect-local={detector}")
    text = rendered(capsys, *flags)
    with own_network():
        run("nft", "-f", "-", given=text)
        chains = json.loads(run("nft", "-j", "list", "chains"))["nftables"]
    names = {each["chain"]["name"] for each in chains if "chain" in each}
    assert names >= set(re.findall(r"add chain ip kube-proxy (\S+)", text))


def counted(text: str) -> Met:
    """How often each rule of ours was met: by table, chain and place in it; see iptables-save."""
    found: Met = Counter()
    table, places = "", Counter[tuple[str, str]]()
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif match := re.match(r"\[(\d+):\d+\] -A (KUBE-\S+)", line):
            chain = match[2]
            found[table, chain, places[table, chain]] += int(match[1])
            places[table, chain] += 1
    return +found


def explained(steps: Sequence[dict[str, str]], text: str) -> Met:
    """The same, of what explain says, in the rules as they were rendered."""
    rules: dict[tuple[str, str], list[str]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith("-A "):
            _, chain, rule = line.split(" ", 2)
            rules.setdefault((table, chain), []).append(rule)
    ours = [step for step in steps if step["chain"].startswith("KUBE-")]
    return Counter(
        (step["table"], step["chain"], rules[step["table"], step["chain"]].index(step["rule"]))
        for step in ours
    )


@contextlib.contextmanager
def node_network(text: str) -> Iterator[None]:
    """A node with the rules: whatever it sends leaves by one link, whose far end is here too."""
    with own_network():
        for command in (
            f"link add out address {MAC} type veth peer name far",
            "link set out up", "link set far up",
            "addr add 192.0.2.1/24 dev out", "route add default dev out",
        ):  # fmt: skip
            run("ip", *command.split())
        for name, value in (
            ("conf/all/route_localnet", 1), ("ip_forward", 1), ("conf/all/rp_filter", 0),
            ("conf/out/rp_filter", 0), ("conf/all/send_redirects", 0),
            ("conf/out/send_redirects", 0),
        ):  # fmt: skip
            Path("/proc/sys/net/ipv4", name).write_text(str(value))
        run("iptables-restore", "--noflush", given=text)
        yield


def send(source: str, destination: str) -> None:
    """Send a datagram from the node."""
    host, _, port = destination.partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind((source, 0))
        # One that is refused at once is not even sent: EPERM.
        with contextlib.suppress(PermissionError, ConnectionRefusedError):
            client.sendto(b"x", (host, int(port)))


def send_from_far(source: str, destination: str) -> None:
    """Let a datagram come in by the node's link."""
    host, _, port = destination.partition(":")
    datagram = struct.pack("!HHHH", 40000, int(port), 9, 0) + b"x"
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 1, 0, 64, 17, 0)
    head += socket.inet_aton(source) + socket.inet_aton(host)
    total = sum(struct.unpack("!10H", head))
    checksum = ~(total % 0xFFFF) & 0xFFFF
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as far:
        packet = head[:10] + checksum.to_bytes(2, "big") + head[12:] + datagram
        far.sendto(packet, ("far", 0x0800, 0, 0, bytes.fromhex(MAC.replace(":", ""))))


@pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables")
@pytest.mark.parametrize("source", ["node", "203.0.113.7", "10.180.0.77", "10.180.0.5"])
@pytest.mark.parametrize(
    "destination",
    [
        "10.96.0.20:80",
        "192.0.2.1:30080",
        "127.0.0.1:30080",
        "10.96.0.21:80",
        "192.0.2.1:30081",
        "10.96.0.22:80",
        "192.0.2.1:30082",
        "192.0.2.1:9999",
        "10.180.1.6:8080",
    ],
)
def test_a_packet_meets_the_rules_that_it_is_said_to_meet(
    source: str, destination: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "services.yaml"
    path.write_text(PLAIN)
    flags = (f"--manifests={path}", "--detect-local=node-cidr")
    text = rendered(capsys, *flags)
    assert main(["node-proxy", "explain", source, f"{destination}/udp", "-o", "json", *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    possible = [explained([*answer["steps"], *each["steps"]], text) for each in answer["outcomes"]]
    with node_network(text):
        if source == "node":
            send(answer["packet"]["source"], destination)
        else:
            send_from_far(source, destination)
        deadline = time.monotonic() + LIMIT_S / 10
        while (met := counted(run("iptables-save", "-c"))) not in possible:
            assert time.monotonic() < deadline, (met, possible)
