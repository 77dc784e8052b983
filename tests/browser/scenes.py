"""Programs that never ran, as a feed would show them; always the same ones, by a seeded chance."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from isthmus.net.rules_expiry import standing

Json = dict[str, Any]

REQUESTERS = (
    "certificate:kube-apiserver",
    "certificate:kube-apiserver",
    "certificate:kube-apiserver",
    "certificate:metrics-server",
    "uid:0",
)
REASONS = ("connection refused", "timed out", "name not resolved", "no agent available")
STALLS = (
    "client stopped reading; 256KiB held for 12s",
    "target stopped reading (no credit on the link); 64KiB held for 48s",
)
SLOW = "client reads slowly, 293KiB/s; 256KiB held"


def rfc3339(when: datetime) -> str:
    """A time as the feed writes it."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True, kw_only=True)
class Scene:
    """One program: what ``hello`` and ``full`` say of it. Change it between two events at will."""

    source: Json
    snapshot: Json
    history: list[Json] = field(default_factory=list)
    audit: Json = field(default_factory=lambda: {"enabled": False, "records": []})
    lost: str = ""
    clock: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def id(self) -> str:
        """The source's id."""
        return str(self.source["id"])

    def full(self) -> Json:
        """The data of a ``full``."""
        return {
            "source": self.id,
            "at": rfc3339(self.clock),
            "snapshot": self.snapshot,
            "history": self.history,
            "audit": self.audit,
        }

    def delta(self, **parts: Any) -> Json:
        """The data of a ``delta``, one second after what was before."""
        self.clock += timedelta(seconds=1)
        return {"source": self.id, "at": rfc3339(self.clock), **parts}

    def moving(self, chance: random.Random, some: int = 10) -> Json:
        """A second in which some tunnels and their links carried bytes."""
        able = [tunnel for tunnel in self.snapshot["tunnels"] if not tunnel["stalled"]]
        tunnels = chance.sample(able, min(some, len(able)))
        totals = self.snapshot["totals"]
        links = {link["id"]: link for link in self.snapshot.get("links", [])}
        for tunnel in tunnels:
            to_target, to_client = chance.randrange(40_000), chance.randrange(900_000)
            tunnel["bytesToTarget"] += to_target
            tunnel["bytesToClient"] += to_client
            totals["bytesToTarget"] += to_target
            totals["bytesToClient"] += to_client
            if link := links.get(tunnel["linkId"]):
                link["sentBytes"] += to_target
                link["receivedBytes"] += to_client
        totals["dials"] += chance.randrange(9)
        return self.delta(
            snapshot={"totals": totals},
            tunnels={"moved": [[t["id"], t["bytesToTarget"], t["bytesToClient"]] for t in tunnels]},
            links={"moved": [moved_link(link) for link in links.values()]},
        )


def moved_link(link: Json) -> list[Any]:
    """A link as ``moved`` has it."""
    keys = ("id", "sentBytes", "receivedBytes", "streams", "heldBytes", "rttSeconds", "keptBytes")
    return [link[key] for key in keys]


def agent(number: int, chance: random.Random, **more: Any) -> Json:
    """An agent as its server shows it."""
    zone = "abc"[number % 3]
    return {
        "id": f"node-{number}",
        "identity": f"system:node:node-{number}",
        "identifiers": [f"ipv4=10.0.{number // 250}.{number % 250 + 1}"],
        "version": "0.1.0",
        "zone": f"eu-1{zone}",
        "network": "",
        "links": 1,
        "tunnels": 0,
        "draining": False,
        "rttSeconds": round(chance.uniform(0.0004, 0.004), 5),
        **more,
    }


def link(number: int, peer: str, chance: random.Random, **more: Any) -> Json:
    """A link as a server shows it."""
    return {
        "id": number,
        "peerId": peer,
        "peerAddress": f"192.0.2.{number % 250}:41{number % 1000:03}",
        "peerVersion": "0.1.0",
        "carrier": "mux",
        "state": "open",
        "ageSeconds": 4000.0,
        "streams": 3,
        "rttSeconds": round(chance.uniform(0.0004, 0.004), 5),
        "heldBytes": 0,
        "sentBytes": 10_000,
        "receivedBytes": 20_000,
        "windowGrowthBytes": 0,
        "windowGrowthPeakBytes": 0,
        "resumes": 0,
        "keptBytes": 0,
        **more,
    }


def relay(server: str, direction: str, **more: Any) -> Json:
    """A link between two servers, as one of them shows it."""
    return {
        "serverId": server,
        "direction": direction,
        "address": "192.0.2.9:8091",
        "identity": "certificate:relay.isthmus.internal",
        "state": "open",
        "agents": direction == "to",
        "agentCount": 3 if direction == "to" else 0,
        "streams": 1,
        "ageSeconds": 300.0,
        "rttSeconds": 0.0011,
        **more,
    }


def tunnel(number: int, agents: list[Json], chance: random.Random, **more: Any) -> Json:
    """A tunnel through one of the agents."""
    through = chance.randrange(len(agents))
    agents[through]["tunnels"] += 1
    port = chance.choice((10250, 10250, 443, 9443, 8443))
    stalled = chance.choice(STALLS) if chance.random() < 0.03 else ""
    half = chance.random() < 0.05
    slow = SLOW if number % 20 == 7 and not stalled else ""
    state = "stalled" if stalled else "slow" if slow else "half-closed" if half else "open"
    return {
        "id": number,
        "frontend": chance.choice(("http-connect", "grpc")),
        "requester": chance.choice(REQUESTERS),
        "target": f"10.0.{through // 250}.{chance.randrange(1, 250)}:{port}",
        "agentId": agents[through]["id"],
        "linkId": through + 1,
        "state": state,
        "ageSeconds": round(chance.expovariate(1 / 900), 1),
        "bytesToTarget": int(chance.lognormvariate(9, 2)),
        "bytesToClient": int(chance.lognormvariate(12, 2.5)),
        "stalled": stalled,
        "slow": slow,
        "connectionId": f"5f1c09ab-{number:x}",
        "relay": "",
        **more,
    }


def other_server(server: str, known_by: str = "lease", address: str = "") -> Json:
    """A server that another one knows of."""
    return {"serverId": server, "knownBy": known_by, "address": address}


def certificate(file: str, *, now: datetime, left: timedelta, life: timedelta) -> Json:
    """A certificate in use, judged as programs judge it."""
    not_after = now + left
    not_before = not_after - life
    stands = standing(not_before=not_before, not_after=not_after, now=now)
    return {
        "file": file,
        "notAfter": rfc3339(not_after),
        "notBefore": rfc3339(not_before),
        "standing": stands.value,
    }


def memory(held: dict[str, int], **more: Any) -> Json:
    """The memory budget, and who holds how much of it."""
    used = sum(held.values())
    most_first = sorted(held.items(), key=lambda it: -it[1])
    return {
        "budgetBytes": 256 << 20,
        "usedBytes": used,
        "mostUsedBytes": used * 5,
        "peers": len(held),
        "overShare": 0,
        "largest": [{"peer": peer, "bytes": size} for peer, size in most_first if size],
        **more,
    }


def steps(count: int, chance: random.Random, *, tunnels: int = 40) -> list[Json]:
    """The last steps of a busy program."""
    now = datetime.now(UTC)
    made = []
    level = 3e5
    for number in range(1, count + 1):
        level = min(2e6, max(1e5, level * chance.uniform(0.82, 1.22)))
        tunnels = max(0, tunnels + chance.randrange(-6, 7))
        bad = chance.random() < (0.9 if count * 0.55 < number < count * 0.68 else 0.12)
        failures = {chance.choice(REASONS): chance.randrange(1, 9) for _ in range(3)} if bad else {}
        made.append(
            {
                "number": number,
                "time": rfc3339(now - timedelta(seconds=10 * (count - number))),
                "dials": chance.randrange(20, 60),
                "failures": failures,
                "dialTimes": dial_times(chance, late=bad),
                "bytesToTarget": int(level * chance.uniform(2, 5)),
                "bytesToClient": int(level * chance.uniform(60, 100)),
                "tunnels": tunnels,
                "agents": 6,
                "links": 6,
            }
        )
    return made


def dial_times(chance: random.Random, *, late: bool) -> list[Json]:
    """The dials of a step by the buckets of a server."""
    counts = (chance.randrange(15, 40), chance.randrange(3, 15), chance.randrange(3), late * 2)
    bounds = (0.0001, 0.005, 0.025, 0.1, 0.5)
    buckets = zip(bounds, bounds[1:], counts, strict=False)
    return [[above, up_to, count] for above, up_to, count in buckets if count]


def server(
    *, id: str = "0", instance: str = "cp-1", agents: int = 6, tunnels: int = 42, seed: int = 1
) -> Scene:
    """A server with agents and tunnels."""
    chance = random.Random(seed)
    nodes = [agent(number, chance) for number in range(1, agents + 1)]
    first = 10_000 * int(id)
    lines = (
        [tunnel(first + number, nodes, chance) for number in range(1, tunnels + 1)] if nodes else []
    )
    links = [link(number, node["id"], chance) for number, node in enumerate(nodes, 1)]
    now = datetime.now(UTC)
    certificates = [
        certificate(
            f"/etc/isthmus/pki/{name}.crt",
            now=now,
            left=timedelta(days=left),
            life=timedelta(days=life),
        )
        for name, left, life in (
            ("server", 4.5, 90),
            ("cluster", 21.2, 90),
            ("agents-ca", 3650, 3653),
        )
    ]
    snapshot = {
        "kind": "ServerSnapshot",
        "serverId": instance,
        "version": "0.1.0",
        "takenAt": rfc3339(now),
        "uptimeSeconds": 93_784.0,
        "draining": False,
        "totals": {
            "dials": 18_231,
            "dialsFailed": 57,
            "tunnelsEnded": 18_132,
            "bytesToTarget": 4_120_400_000,
            "bytesToClient": 91_000_700_000,
        },
        "agents": nodes,
        "links": links,
        "relays": [],
        "serverCount": 1,
        "otherServers": [],
        "tunnels": lines,
        "truncated": 0,
        "networks": [],
        "recentEndings": [ending(number, chance) for number in range(8)],
        "certificates": certificates,
        "featureGates": [
            {"name": "NodeToControlPlane", "stage": "ALPHA", "enabled": True},
            {"name": "ContextualLogging", "stage": "BETA", "enabled": False},
        ],
        "allowedDestinations": [],
        "memory": memory(
            {"certificate:kube-apiserver": 1_310_720, "certificate:metrics-server": 65_536},
            overShare=2,
        ),
    }
    source = {"id": id, "program": "server", "instance": instance, "address": "", "canEnd": True}
    return Scene(source=source, snapshot=snapshot, history=steps(200, chance, tunnels=tunnels))


def ending(number: int, chance: random.Random) -> Json:
    """How a tunnel ended."""
    how, by = chance.choice((("closed", "both"), ("closed", "both"), ("reset by peer", "target")))
    return {
        "target": f"10.0.0.{chance.randrange(1, 250)}:10250",
        "ending": how,
        "by": by,
        "bytesToTarget": chance.randrange(9000),
        "bytesToClient": chance.randrange(900_000),
        "durationSeconds": round(chance.expovariate(1 / 30), 2),
        "ageSeconds": float(number * 7 + 2),
        "connectionId": f"5f1c09ab-{number + 4096:x}",
    }


def agent_program(*, id: str = "0", instance: str = "node-7") -> Scene:
    """An agent linked to two servers, one of them stuck, with connections from its node."""
    chance = random.Random(5)
    now = datetime.now(UTC)
    peers = [{"id": "cp-1", "tunnels": 0}, {"id": "cp-2", "tunnels": 0}]
    lines = [tunnel(number, peers, chance, agentId=instance) for number in range(1, 9)]
    failure = {
        "client": "10.244.1.9:40122",
        "destination": "kube-apiserver:6443",
        "result": "denied",
        "reason": "the server does not allow kube-apiserver:6443",
        "ageSeconds": 12.0,
        "connectionId": "77aa01-3",
    }
    snapshot = {
        "kind": "AgentSnapshot",
        "agentId": instance,
        "version": "0.1.0",
        "takenAt": rfc3339(now),
        "uptimeSeconds": 4211.0,
        "draining": False,
        "knownServers": 3,
        "totals": {
            "dials": 120,
            "dialsFailed": 3,
            "tunnelsEnded": 109,
            "bytesToTarget": 120_000,
            "bytesToClient": 9_000_000,
        },
        "links": [link(1, "cp-1", chance), link(2, "cp-2", chance, state="stuck")],
        "tunnels": lines,
        "truncated": 0,
        "recentEndings": [],
        "certificates": [
            certificate(
                "/etc/isthmus/agent.crt",
                now=now,
                left=timedelta(hours=-5),
                life=timedelta(days=90),
            )
        ],
        "featureGates": [],
        "nodeTraffic": {
            "address": "172.20.0.1",
            "addresses": ["172.20.0.1"],
            "interface": "isthmus0",
            "listening": True,
            "waitsFor": "no connected server carries connections from nodes",
            "waiting": 2,
            "open": 0,
            "targets": [{"localPort": 6443, "destination": "kube-apiserver:6443"}],
            "servers": [{"serverId": "cp-1", "carries": "no", "silent": False}],
            "recentFailures": [failure],
        },
        "endpointAllow": ["10.0.0.0/8"],
        "endpointDeny": ["169.254.0.0/16"],
        "memory": memory({"certificate:cp-1": 131_072, "certificate:cp-2": 0}),
    }
    source = {"id": id, "program": "agent", "instance": instance, "address": "", "canEnd": False}
    return Scene(source=source, snapshot=snapshot, history=steps(40, chance, tunnels=8))
