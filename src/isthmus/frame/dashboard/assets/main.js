// Wires the parts: the feed changes the state, and the state is drawn at most once a frame.

import { Charts } from "./charts.js";
import { Details } from "./details.js";
import { Feed } from "./feed.js";
import { Header } from "./header.js";
import { Installation } from "./installation.js";
import { listenToKeys } from "./keys.js";
import { Panels } from "./panels.js";
import { Peers } from "./peers.js";
import { Picture } from "./picture.js";
import { State } from "./state.js";
import { Token } from "./token.js";
import { TunnelTable } from "./tunnels.js";

const state = new State();
const token = new Token();
const filter = (wanted) => {
  table.filter(wanted);
  soon();
};
const table = new TunnelTable(state, {
  opened: (tunnel, row, { quietly = false } = {}) => {
    if (!quietly || details.tunnel) details.open(tunnel, row);
  },
  asked: (tunnel) => end(tunnel),
});
const details = new Details({
  token,
  find: ({ source, id }) => state.sources.get(source.id)?.tunnels.get(id),
  closed: () => close(),
});
const header = new Header(state, { retry, filter });
const picture = new Picture(state, { filter, refresh: (it) => table.refresh(it) });
const charts = new Charts(state);
const installation = new Installation(state);
const peers = new Peers(state, { filter });
const panels = new Panels(state);
const feed = new Feed({ heard, changed: (status) => header.live(status), token });

let waiting = false;

function heard(name, data) {
  if (name === "hello") {
    table.select(null); // a restarted program numbers its tunnels anew
    // An updated program may have another version of this page.
    if (state.version && state.version !== data.version) location.reload();
  }
  if (state.take(name, data)) soon();
}

/** Draw in the next frame, once, however many events arrive before it. */
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function draw() {
  const parts = [header, picture, charts, table, details, installation, peers, panels];
  for (const part of parts) {
    try {
      part.draw(table.filterKey);
    } catch (error) {
      // A program of another version may lack what one part needs; the others still draw.
      reportError(error);
    }
  }
}

function retry() {
  token.show();
  feed.tryNow();
}

function end(tunnel) {
  if (details.tunnel?.key !== tunnel.key) details.open(tunnel);
  details.ask();
}

function close() {
  details.open(null);
  table.focus();
}

listenToKeys({ table, details, end, close });
setInterval(() => {
  state.tick();
  header.drawLive();
  if (document.visibilityState === "visible") soon();
}, 1000);
feed.start();
