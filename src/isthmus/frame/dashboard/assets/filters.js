// Filters of the tunnels: {key, label, test(tunnel)}. The same part chosen twice has the same key.
// Sources are compared by id: after a reconnection they are other objects.

import { agents } from "./views.js";

/** What some agents carry. */
export function ofAgents(key, label, some) {
  const ids = new Set(some.map((agent) => agent.id));
  return { key, label, test: (tunnel) => ids.has(tunnel.agentId) };
}

/** What one program shows. */
export function ofSource(source, label) {
  return { key: `program ${source.id}`, label, test: (tunnel) => tunnel.source.id === source.id };
}

/** What goes between a server and one of its agents, by however many links. */
export function ofLink(source, agentId) {
  const label = `${source.instance} to ${agentId}`;
  const test = (tunnel) =>
    tunnel.source.id === source.id && tunnel.agentId === agentId && !tunnel.relay;
  return { key: `link ${source.id} ${agentId}`, label, test };
}

/** What a server has another one pass to its agents. */
export function ofRelay(source, serverId) {
  const label = `${source.instance} to ${serverId}`;
  const test = (tunnel) => tunnel.source.id === source.id && tunnel.relay === serverId;
  return { key: `link ${source.id} server ${serverId}`, label, test };
}

/** What goes by one link of an agent. */
export function ofServerLink(link) {
  const { source } = link;
  const test = (tunnel) => tunnel.source.id === source.id && tunnel.linkId === link.id;
  return { key: `link ${source.id} ${link.id}`, label: `link to ${link.peerId}`, test };
}

/** What the agents of a network carry. */
export function ofNetwork(state, name) {
  const members = agents(state).filter((agent) => agent.network === name);
  return ofAgents(`network ${name}`, `network ${name}`, members);
}

/** What stands still. */
export const STALLED = { key: "stalled", label: "stalled", test: (it) => it.state === "stalled" };
