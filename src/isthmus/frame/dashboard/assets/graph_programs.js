// Adds each kind of program to the live picture. Pure; the graph itself is graph.js.

import { ofRelay, ofServerLink, ofSource } from "./filters.js";
import { plural, roundTrip } from "./units.js";
import { agents, isByAgents, known, readiness, relaysTo, standing } from "./views.js";

function server(graph, source) {
  const key = graph.front(source);
  // A network that is reached without agents is joined to the server itself.
  const test = (tunnel) => tunnel.source.id === source.id && !tunnel.agentId;
  const flow = flowOf([...source.tunnels.values()].filter(test));
  const filter = { key: `direct ${source.id}`, label: `${source.instance}, without agents`, test };
  for (const network of source.snapshot.networks ?? []) {
    if (isByAgents(network)) continue;
    graph.edge(key, graph.network(network, 2, filter), { ...flow, filter });
  }
  for (const relay of relaysTo(source)) addRelay(graph, source, key, relay);
}

/** Another server that this one relays through: drawn while it carries tunnels. */
function addRelay(graph, source, key, relay) {
  const filter = ofRelay(source, relay.serverId);
  const carried = [...source.tunnels.values()].filter(filter.test);
  if (!carried.length) return; // servers are all linked to each other, which a panel lists
  const { level, text, mark } = standing(relay);
  const flow = flowOf(carried);
  const other = known(graph.state).find((it) => it.snapshot.serverId === relay.serverId);
  if (other) {
    graph.edge(key, `program ${other.id}`, { ...flow, level, filter });
    return;
  }
  const detail = `server · ${level === "ok" ? roundTrip(relay.rttSeconds) : text}`;
  const parts = { title: relay.serverId, detail, level, mark, filter };
  const there = graph.node(`server ${relay.serverId}`, 2, parts);
  graph.edge(key, there, { ...flow, level, filter });
  graph.edge(there, graph.targets(""), { ...flow, filter });
}

function agentProgram(graph, source) {
  const { level, text, mark } = readiness(source);
  const id = source.snapshot.agentId ?? source.instance;
  if (agents(graph.state).some((agent) => agent.id === id)) return; // its server adds it already
  const key = graph.node(`agent ${id}`, 2, {
    title: id,
    detail: `agent · ${text}`,
    level,
    mark,
    filter: ofSource(source, id),
  });
  graph.edge(key, graph.targets(""), { ...source.rates, filter: ofSource(source, id) });
  for (const link of source.links.values()) {
    const stands = standing(link);
    const from = graph.node(`server ${link.peerId}`, 1, {
      title: link.peerId || link.peerAddress,
      detail: `server · ${stands.level === "ok" ? roundTrip(link.rttSeconds) : stands.text}`,
      ...stands,
      filter: null,
    });
    graph.edge(from, key, { ...link, level: stands.level, filter: ofServerLink(link) });
  }
}

function apiserverProxy(graph, source) {
  const from = graph.front(source);
  for (const upstream of source.snapshot.upstreams ?? []) {
    const text = upstream.up ? (upstream.failed ? "failed recently" : "up") : "down";
    const level = upstream.up ? (upstream.failed ? "warn" : "ok") : "bad";
    const detail = `${text} · ${plural(upstream.connections, "tunnel")}`;
    const test = (tunnel) => tunnel.source.id === source.id && tunnel.target === upstream.address;
    const filter = { key: `to ${upstream.address}`, label: upstream.address, test };
    const parts = { title: upstream.address, detail, level, filter };
    const to = graph.node(`upstream ${upstream.address}`, 3, parts);
    const flow = flowOf([...source.tunnels.values()].filter(test));
    graph.edge(from, to, { ...flow, level, filter });
  }
}

function sniRouter(graph, source) {
  const from = graph.front(source);
  for (const route of source.snapshot.routes ?? []) {
    const test = (tunnel) => tunnel.source.id === source.id && tunnel.frontend === route.name;
    const filter = { key: `route ${route.name}`, label: `route ${route.name}`, test };
    const detail = `route · ${plural(route.connections, "tunnel")}`;
    const failed = route.backends.filter((backend) => backend.failed).length;
    const level = failed === 0 ? "ok" : failed === route.backends.length ? "bad" : "warn";
    const to = graph.node(`route ${route.name}`, 3, { title: route.name, detail, level, filter });
    graph.edge(from, to, { ...flowOf([...source.tunnels.values()].filter(test)), level, filter });
  }
}

function sidecar(graph, source) {
  const from = graph.front(source);
  const title = source.snapshot.server;
  const filter = ofSource(source, source.instance || source.program);
  const to = graph.node(`server ${title}`, 2, { title, detail: "server", level: "end", filter });
  graph.edge(from, to, { ...source.rates, filter });
  graph.edge(to, graph.targets(""), { ...source.rates, filter });
}

/** A program of a kind unknown to this page. */
export function other(graph, source) {
  const key = graph.front(source);
  graph.edge(key, graph.targets(""), { ...source.rates, filter: ofSource(source, source.program) });
}

function flowOf(some) {
  const flow = { toTarget: 0, toClient: 0 };
  for (const tunnel of some) {
    flow.toTarget += tunnel.toTarget;
    flow.toClient += tunnel.toClient;
  }
  return flow;
}

/** By the kind of a snapshot. */
export const PARTS = {
  ServerSnapshot: server,
  AgentSnapshot: agentProgram,
  ApiserverProxySnapshot: apiserverProxy,
  SniRouterSnapshot: sniRouter,
  SidecarSnapshot: sidecar,
};
