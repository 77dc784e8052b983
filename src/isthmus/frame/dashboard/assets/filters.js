// Filters of tunnels: {key, label, test(tunnel)}. The same thing selected twice has the same key.
// Sources are compared by id: a reconnection makes new objects.

import { agents } from "./views.js";

/** The tunnels of some agents. */
export function ofAgents(key, label, some) {
  const ids = new Set(some.map((agent) => agent.id));
  return { key, label, test: (tunnel) => ids.has(tunnel.agentId) };
}

/** The tunnels of one program. */
export function ofSource(source, label) {
  return { key: `program ${source.id}`, label, test: (tunnel) => tunnel.source.id === source.id };
}

/** The tunnels between a server and one of its agents, over all their links. */
export function ofLink(source, agentId) {
  const label = `${source.instance} to ${agentId}`;
  const test = (tunnel) =>
    tunnel.source.id === source.id && tunnel.agentId === agentId && !tunnel.relay;
  return { key: `link ${source.id} ${agentId}`, label, test };
}

/** The tunnels that a server relays through another one. */
export function ofRelay(source, serverId) {
  const label = `${source.instance} to ${serverId}`;
  const test = (tunnel) => tunnel.source.id === source.id && tunnel.relay === serverId;
  return { key: `link ${source.id} server ${serverId}`, label, test };
}

/** The tunnels over one link of an agent. */
export function ofServerLink(link) {
  const { source } = link;
  const test = (tunnel) => tunnel.source.id === source.id && tunnel.linkId === link.id;
  return { key: `link ${source.id} ${link.id}`, label: `link to ${link.peerId}`, test };
}

/** The tunnels of a network's agents. */
export function ofNetwork(state, name) {
  const members = agents(state).filter((agent) => agent.network === name);
  return ofAgents(`network ${name}`, `network ${name}`, members);
}

/** Bytes are waiting and some move; not the same as stalled. */
export const SLOW = { key: "slow", label: "slow", test: (it) => it.state === "slow" };

/** Bytes are waiting and none move. */
export const STALLED = { key: "stalled", label: "stalled", test: (it) => it.state === "stalled" };
