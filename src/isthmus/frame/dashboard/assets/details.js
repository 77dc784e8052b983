// The details of one tunnel, and ending it: asks first, names the tunnel, and reports the result.

import { badge, byId, el, peerText, setAttr, setBadge, setClass, setPeer, setText } from "./dom.js";
import { stateOf, through } from "./tunnels.js";
import { bytes, duration, rate } from "./units.js";

const FIELDS = [
  ["Client", (it) => it.requester || "–"],
  ["Target", (it) => it.target],
  ["Frontend", (it) => it.frontend],
  ["Agent", through],
  ["Link", (it) => (it.linkId ? String(it.linkId) : "–")],
  ["Program", (it) => `${it.source.program} ${it.source.instance}`.trim()],
  ["Age", (it) => duration(performance.now() / 1000 - it.bornAt)],
  ["To target", (it) => `${bytes(it.bytesToTarget)}  ${rate(it.toTarget)}`],
  ["To client", (it) => `${bytes(it.bytesToClient)}  ${rate(it.toClient)}`],
];
const CANNOT = "This program's tunnels cannot be ended from this page.";

/**
 * The panel beside the table. `token` gives headers, `find(tunnel)` the current tunnel of the same
 * number, if any, and `closed` is called when the reader closes the panel.
 */
export class Details {
  #token;
  #find;
  #closed;
  #tunnel = null;
  #ended = "";
  #values = new Map();
  #badge = badge("ok", "");
  #panel = byId("details");

  constructor({ token, find, closed }) {
    this.#token = token;
    this.#find = find;
    this.#closed = closed;
    byId("details-state").append(this.#badge);
    for (const [name] of FIELDS) {
      const value = peerText("");
      this.#values.set(name, value);
      byId("details-fields").append(el("dt", { text: name }), el("dd", {}, value));
    }
    byId("details-close").addEventListener("click", () => this.#closed());
    byId("details-copy").addEventListener("click", () => this.#copy());
    byId("details-end").addEventListener("click", () => this.ask());
    byId("end-no").addEventListener("click", () => byId("end-dialog").close());
    byId("end-yes").addEventListener("click", () => this.#end());
  }

  get tunnel() {
    return this.#tunnel;
  }

  /** Show a tunnel beside its row, which may be out of sight; null closes the panel. */
  open(tunnel, row = null) {
    this.#tunnel = tunnel;
    this.#ended = "";
    this.#panel.hidden = tunnel === null;
    setAttr(byId("tunnel-area"), "data-details", tunnel !== null);
    this.draw();
    if (tunnel) this.#place(row);
  }

  /** Level with the row, as far as the table is high enough; CSS has it for wide pages only. */
  #place(row) {
    this.#panel.style.setProperty("--beside", "0px");
    if (row) {
      const area = byId("tunnel-area").getBoundingClientRect();
      const most = area.height - this.#panel.offsetHeight;
      const wanted = Math.min(row.getBoundingClientRect().top - area.top, most);
      this.#panel.style.setProperty("--beside", `${Math.max(0, Math.round(wanted))}px`);
    }
    this.#panel.scrollIntoView({ block: "nearest" });
  }

  draw() {
    if (!this.#tunnel) return;
    const fresh = this.#tunnel.source.tunnels.get(this.#tunnel.id);
    if (fresh) this.#tunnel = fresh;
    const gone = !fresh;
    const tunnel = this.#tunnel;
    for (const [name, read] of FIELDS) {
      if (!(gone && name === "Age")) setPeer(this.#values.get(name), read(tunnel));
    }
    const { level, mark } = stateOf(tunnel);
    if (gone) setBadge(this.#badge, "idle", this.#ended || "ended");
    else setBadge(this.#badge, level, tunnel.state, mark);
    setPeer(byId("details-why"), gone ? "" : tunnel.stalled || tunnel.slow);
    setClass(byId("details-why").parentNode, `why ${level}`);
    setPeer(byId("details-id"), tunnel.connectionId || "–");
    const refused = gone ? "" : tunnel.source.canEnd ? "" : CANNOT;
    setAttr(byId("details-end"), "disabled", gone || refused !== "");
    setText(byId("details-cannot"), refused);
  }

  /** Ask for confirmation to end the tunnel. */
  ask() {
    const tunnel = this.#tunnel;
    if (!tunnel || byId("details-end").disabled) return;
    setPeer(byId("end-who"), tunnel.requester || "unknown");
    setPeer(byId("end-to"), tunnel.target);
    setPeer(byId("end-via"), tunnel.agentId ? through(tunnel) : "none");
    setPeer(byId("end-id"), tunnel.connectionId || `tunnel ${tunnel.id}`);
    setText(byId("end-result"), "");
    setAttr(byId("end-yes"), "disabled", false);
    const dialog = byId("end-dialog");
    dialog.tunnel = tunnel; // fixed here, even if another one is selected meanwhile
    dialog.showModal();
    byId("end-no").focus();
  }

  async #end() {
    const dialog = byId("end-dialog");
    const { tunnel } = dialog;
    setAttr(byId("end-yes"), "disabled", true);
    const why = await this.#order(tunnel);
    const asking = dialog.open && dialog.tunnel === tunnel; // still about the same tunnel
    if (asking) setAttr(byId("end-yes"), "disabled", false);
    if (why) {
      if (asking) setText(byId("end-result"), why);
      else say(why);
      return;
    }
    if (asking) dialog.close();
    say(`Ended the tunnel to ${tunnel.target}.`);
    if (this.#tunnel?.key === tunnel.key) this.#ended = "ended by you";
    this.draw();
  }

  /** Request the end; empty, or why it was refused. */
  async #order(tunnel) {
    // A restarted program numbers its tunnels from 1 again.
    if (this.#find(tunnel)?.connectionId !== tunnel.connectionId) {
      return "This tunnel has ended already; nothing was done.";
    }
    try {
      const reply = await fetch("end", {
        method: "POST",
        headers: {
          ...this.#token.headers(),
          "Content-Type": "application/json",
          "X-Isthmus-Intent": "end",
        },
        body: JSON.stringify({ source: tunnel.source.id, tunnel: tunnel.id }),
      });
      if (reply.ok) return "";
      return sentence(await reply.text()) || `Refused with status ${reply.status}.`;
    } catch {
      return "No answer; check whether the tunnel is still open.";
    }
  }

  async #copy() {
    const id = this.#tunnel.connectionId;
    try {
      await navigator.clipboard.writeText(id);
      say(`Copied ${id}.`);
    } catch {
      // Without HTTPS or permission there is no clipboard API: select the text instead.
      getSelection().selectAllChildren(byId("details-id"));
      say("Selected: copy it with the keyboard.");
    }
  }
}

function sentence(text) {
  try {
    const said = JSON.parse(text);
    return String(said.message ?? said.error ?? said.reason ?? text).slice(0, 400);
  } catch {
    return text.trim().slice(0, 400);
  }
}

let silence = null;

/** Show a message for some seconds; screen readers announce it. */
function say(text) {
  const place = byId("said");
  setText(place, text);
  place.hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => (place.hidden = true), 6000);
}
