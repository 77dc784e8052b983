// The panels below the tunnels. Each has a title, rows, columns, and a text for when it has no
// rows; `when` tells for which sources a panel is shown, `note` is a warning about them.

import { figure, said, stands } from "./plain_table.js";
import { byName, bytes, clock, count, duration, expiry, plural, roundTrip } from "./units.js";
import { known, listed, nameOf, standing } from "./views.js";

const age = (it) => duration(performance.now() / 1000 - it.bornAt);
const ago = (it) => `${duration(performance.now() / 1000 - it.at)} ago`;
const moved = (it) => `→ ${bytes(it.bytesToTarget)}  ← ${bytes(it.bytesToClient)}`;

export const PANELS = [
  {
    key: "upstreams",
    title: "Upstreams",
    when: (it) => "upstreams" in it.snapshot,
    rows: (state) => listed(state, "upstreams"),
    keyOf: (it) => `${it.source.id} ${it.address}`,
    none: "No upstreams configured.",
    columns: [
      said("Address", (it) => it.address, (it) => it.resolved.join(", ")),
      stands("State", (it) =>
        it.up
          ? it.failed ? { level: "warn", text: "failed recently" } : { level: "ok", text: "up" }
          : { level: "bad", text: "down" },
      ),
      said("Last check", (it) => it.lastCheck || "–", through),
      figure("Tunnels", (it) => count(it.connections)),
    ],
  },
  {
    key: "routes",
    title: "Routes",
    when: (it) => "routes" in it.snapshot,
    rows: (state) => listed(state, "routes"),
    keyOf: (it) => `${it.source.id} ${it.name}`,
    none: "No routes configured.",
    columns: [
      said("Route", (it) => it.name, hostsOf),
      said("Backends", (it) => it.backends.map(backend).join(", ")),
      figure("Tunnels", ofMost),
    ],
  },
  {
    key: "names",
    title: "Name lookups",
    when: (it) => it.snapshot.names,
    note: (state) => known(state).map((it) => it.snapshot.names).map(namesFail).find(Boolean),
    rows: (state) => known(state).flatMap((it) => it.snapshot.names?.lookups ?? []),
    keyOf: (it) => `${it.source} ${it.result}`,
    none: "No lookups yet.",
    columns: [
      said("Source", (it) => it.source),
      said("Result", (it) => it.result),
      figure("Count", (it) => count(it.count)),
    ],
  },
  {
    key: "node-traffic",
    title: "Node to control plane",
    when: (it) => it.snapshot.nodeTraffic,
    note: (state) => nodes(state).map((it) => it.waitsFor).find(Boolean),
    rows: (state) => nodes(state).flatMap((node) => node.targets.map((it) => ({ ...it, node }))),
    keyOf: (it) => `${it.localPort}`,
    none: "No destinations configured.",
    columns: [
      said("Listens on", (it) => `${it.node.address}:${it.localPort}`, (it) => it.node.interface),
      said("Destination", (it) => it.destination),
      stands("State", (it) =>
        it.node.waitsFor || !it.node.listening
          ? { level: "warn", text: it.node.listening ? "waiting" : "not listening" }
          : { level: "ok", text: "ready" },
      ),
      figure("Open", (it) => `${it.node.open}, ${it.node.waiting} waiting`),
    ],
  },
  {
    key: "node-failures",
    title: "Failed connections from this node",
    when: (it) => it.snapshot.nodeTraffic,
    rows: (state) => nodes(state).flatMap((it) => it.recentFailures),
    keyOf: (it) => `${it.connectionId} ${it.client} ${it.at}`,
    none: "No failures.",
    columns: [
      said("When", ago, (it) => it.connectionId),
      said("Client", (it) => it.client),
      said("Destination", (it) => it.destination, (it) => it.reason),
    ],
  },
  {
    key: "node-servers",
    title: "Servers for connections from this node",
    when: (it) => it.snapshot.nodeTraffic,
    rows: (state) => nodes(state).flatMap((it) => it.servers),
    keyOf: (it) => it.serverId,
    none: "No server linked.",
    columns: [said("Server", (it) => it.serverId), stands("State", carrying)],
  },
  {
    key: "links",
    title: "Links",
    when: (it) => it.program === "server",
    rows: (state) => known(state).filter((it) => it.program === "server").flatMap(linksOf),
    keyOf: (it) => `${it.source.id} ${it.id}`,
    none: "No agent linked.",
    columns: [
      said("Agent", (it) => it.peerId || "–", (it) => it.peerAddress),
      stands("State", standing),
      said("Carrier", (it) => it.carrier, (it) => `for ${age(it)}`),
      figure("Streams", (it) => count(it.streams)),
      figure("Held", (it) => bytes(it.heldBytes)),
      figure("Window growth", (it) => bytes(it.windowGrowthBytes)),
    ],
  },
  {
    key: "memory",
    title: "Memory held for peers",
    when: (it) => it.snapshot.memory,
    note: (state) => known(state).map((it) => it.snapshot.memory).map(usedUp).find(Boolean),
    rows: (state) => known(state).flatMap(holdersOf),
    keyOf: (it) => `${it.source.id} ${it.peer}`,
    none: "",
    columns: [
      said("Peer", (it) => it.peer || "all peers", (it) => nameOf(it.source)),
      figure("Held", (it) => bytes(it.bytes)),
      figure("Limit", (it) => (it.peer ? "" : bytes(it.source.snapshot.memory.budgetBytes))),
    ],
  },
  {
    key: "relays",
    title: "Links between servers",
    when: (it) => it.snapshot.relays?.length,
    rows: (state) => listed(state, "relays"),
    keyOf: (it) => [it.source.id, it.direction, it.serverId, it.address].join(" "),
    none: "",
    columns: [
      said("Server", (it) => it.serverId || "–", (it) => it.address),
      said("Direction", asking, has),
      stands("State", standing),
      figure("Streams", (it) => count(it.streams)),
      figure("Round trip", (it) => roundTrip(it.rttSeconds)),
    ],
  },
  {
    key: "destinations",
    title: "Destinations allowed for nodes",
    when: (it) => it.snapshot.allowedDestinations?.length,
    rows: (state) => known(state).flatMap((it) => it.snapshot.allowedDestinations ?? []),
    keyOf: (it) => it,
    none: "",
    columns: [said("Destination", (it) => it)],
  },
  {
    key: "endpoints",
    title: "Endpoints agents may dial",
    when: (it) => it.snapshot.endpointAllow?.length || it.snapshot.endpointDeny?.length,
    rows: (state) => known(state).flatMap(endpointsOf),
    keyOf: (it) => `${it.source.id} ${it.allowed} ${it.what}`,
    none: "",
    columns: [
      said("Endpoints", (it) => it.what, (it) => nameOf(it.source)),
      stands("Access", (it) =>
        it.allowed ? { level: "ok", text: "allowed" } : { level: "idle", text: "denied" },
      ),
    ],
  },
  {
    key: "certificates",
    title: "Certificates",
    rows: (state) => listed(state, "certificates").sort(byExpiry),
    keyOf: (it) => `${it.source.id} ${it.file}`,
    none: "No certificates in use.",
    columns: [
      stands("Validity", (it) => expiry(it)),
      said("File", (it) => it.file, (it) => `until ${it.notAfter}`),
    ],
  },
  {
    key: "endings",
    title: "Recently ended tunnels",
    rows: (state) => listed(state, "recentEndings").sort((a, b) => b.at - a.at),
    keyOf: (it) => [it.source.id, it.connectionId, it.target, it.durationSeconds].join(" "),
    none: "No tunnel has ended yet.",
    columns: [
      said("When", ago, (it) => `after ${duration(it.durationSeconds)}`),
      said("Target", (it) => it.target, (it) => it.connectionId),
      stands("Ending", (it) => ({ level: it.ending === "closed" ? "ok" : "idle", text: it.ending })),
      said("Ended by", (it) => it.by, moved),
    ],
  },
  {
    key: "audit",
    title: "Recent audit records",
    rows: (state) => known(state).flatMap((it) => it.audit.records).sort(byTime),
    keyOf: (it) => `${it.time} ${it.stage} ${it.connectionId ?? ""} ${it.destination ?? ""}`,
    none: (state) =>
      known(state).some((it) => it.audit.enabled)
        ? "No records yet."
        : "The audit log is off. Enable it with --audit-log-path.",
    columns: [
      said("When", (it) => clock(it.time), (it) => it.connectionId ?? ""),
      stands("Stage", (it) => ({ level: STAGES[it.stage] ?? "idle", text: it.stage })),
      said("Client", whoOf, (it) => it.claimed?.user ?? ""),
      said("Target", (it) => it.destination ?? "–", outcome),
    ],
  },
  {
    key: "gates",
    title: "Feature gates",
    when: (it) => it.snapshot.featureGates?.length,
    rows: (state) => listed(state, "featureGates"),
    keyOf: (it) => `${it.source.id} ${it.name}`,
    none: "",
    columns: [
      said("Gate", (it) => it.name, (it) => it.stage.toLowerCase()),
      stands("State", gate),
    ],
  },
];

const STAGES = {
  __proto__: null, // a stage is looked up by a word of the feed
  Begin: "ok",
  End: "idle",
  Refused: "bad",
  Failed: "warn",
  Dropped: "bad",
};

function gate({ enabled }) {
  return enabled ? { level: "ok", text: "on" } : { level: "idle", text: "off" };
}

function carrying({ carries, silent }) {
  if (silent) return { level: "warn", text: "no answer" };
  if (carries === "yes") return { level: "ok", text: "available" };
  return { level: "idle", text: carries === "no" ? "not supported" : "unknown" };
}

/** Which of the two servers dials through the agents of the other. */
function asking({ direction, serverId, source }) {
  return `${direction === "to" ? nameOf(source) : serverId} dials`;
}

function has({ direction, agents, agentCount }) {
  if (direction !== "to") return "through agents of this server";
  if (!agents) return "no agents reported";
  // Programs of older versions do not report how many.
  return agentCount ? `${plural(agentCount, "agent")} reported` : "agents reported";
}

/** Both lists of an agent. The denied ones come first: they win over the allowed ones. */
function endpointsOf(source) {
  const { endpointAllow = [], endpointDeny = [] } = source.snapshot;
  const rows = (list, allowed) => list.map((what) => ({ what, allowed, source }));
  return [...rows(endpointDeny, false), ...rows(endpointAllow, true)];
}

/** A program's whole memory budget, then the peers that hold most of it. */
function holdersOf(source) {
  const { memory } = source.snapshot;
  if (!memory) return [];
  const all = { peer: "", bytes: memory.usedBytes, source };
  return [all, ...memory.largest.map((it) => ({ ...it, source }))];
}

function usedUp(memory) {
  if (!memory || memory.usedBytes < memory.budgetBytes) return "";
  return "The memory budget is exhausted: peers over their share are slowed or refused.";
}

function linksOf(source) {
  return [...source.links.values()].sort((a, b) => byName(a.peerId, b.peerId) || a.id - b.id);
}

function through(upstream) {
  return upstream.through ? `through ${upstream.through}` : "";
}

function hostsOf(route) {
  return route.hosts.join(", ") || (route.isDefault ? "all other names" : "");
}

function backend({ address, failed }) {
  return failed ? `${address} (failed)` : address;
}

function ofMost({ connections, maxConnections }) {
  return maxConnections ? `${count(connections)} of ${count(maxConnections)}` : count(connections);
}

function namesFail(names) {
  if (!names || names.tunnelWorks) return "";
  const since = duration(names.failingSeconds);
  return `The guest cluster's DNS has been unreachable through the tunnel for ${since}.`;
}

/** As tunnels have it: `uid:0` rather than the number alone. */
function whoOf({ requester }) {
  if (!requester?.name) return "–";
  return requester.kind ? `${requester.kind}:${requester.name}` : requester.name;
}

function outcome(it) {
  if (it.failure || it.reason) return it.reason || it.failure;
  if (it.ending) return `${it.ending}, by ${it.endedBy} after ${duration(it.durationSeconds)}`;
  return it.agentId ? `through ${it.agentId}` : "";
}

function nodes(state) {
  return known(state).map((source) => source.snapshot.nodeTraffic).filter(Boolean);
}

function byExpiry(a, b) {
  return Date.parse(a.notAfter) - Date.parse(b.notAfter);
}

function byTime(a, b) {
  return a.time < b.time ? 1 : a.time > b.time ? -1 : 0;
}
