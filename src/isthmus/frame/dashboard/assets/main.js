// Puts the parts together: the feed changes the state, and the state is drawn once a frame.

import { Charts } from "./charts.js";
import { Details } from "./details.js";
import { Feed } from "./feed.js";
import { Header } from "./header.js";
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
  opened: (tunnel, { quietly = false } = {}) => {
    if (!quietly || details.tunnel) details.open(tunnel);
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
const peers = new Peers(state, { filter });
const panels = new Panels(state);
const feed = new Feed({ heard, changed: (status) => header.live(status), token });

let waiting = false;

function heard(name, data) {
  if (name === "hello") {
    table.select(null); // the tunnels of another life have other numbers
    // A program that was updated has another page than this one.
    if (state.version && state.version !== data.version) location.reload();
  }
  if (state.take(name, data)) soon();
}

/** Draw with the next frame, once, however much is heard until then. */
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function draw() {
  for (const part of [header, picture, charts, table, details, peers, panels]) {
    try {
      part.draw(table.filterKey);
    } catch (error) {
      // A program of another version may leave out what one part counts on; the others go on.
      reportError(error);
    }
  }
}

function retry() {
  token.show();
  feed.tryNow();
}

function end(tunnel) {
  details.open(tunnel);
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
