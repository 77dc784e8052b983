// Draws the panels below the tunnels: certificates, ended tunnels, audit, and each program's own.

import { badge, byId, el, keyed, setText } from "./dom.js";
import { PANELS } from "./panel_list.js";
import { PlainTable } from "./plain_table.js";
import { count } from "./units.js";
import { known } from "./views.js";

const MOST = 50;

export class Panels {
  #state;

  constructor(state) {
    this.#state = state;
  }

  draw() {
    const sources = known(this.#state);
    if (!sources.length) return;
    const shown = PANELS.filter(({ when }) => !when || sources.some(when));
    keyed(byId("parts"), shown, (it) => it.key, makePanel, (panel, it) => this.#fill(panel, it));
  }

  #fill({ parts }, { rows, keyOf, columns, none, note }) {
    const all = rows(this.#state);
    parts.table.columns(columns);
    parts.table.show(all.slice(0, MOST), keyOf);
    parts.scroll.hidden = all.length === 0;
    setText(parts.count, all.length ? count(all.length) : "");
    setText(parts.none, all.length ? "" : typeof none === "string" ? none : none(this.#state));
    const more = all.length - MOST;
    setText(parts.more, more > 0 ? `${count(more)} more not listed` : "");
    const worst = note?.(this.#state) ?? "";
    parts.note.hidden = !worst;
    setText(parts.note.lastChild, worst);
  }
}

function makePanel({ key, title }) {
  const id = `panel-${key}`;
  const region = { role: "group", "aria-labelledby": id, tabindex: "0" };
  const element = el("table", { class: "plain small" }, el("thead"), el("tbody"));
  const parts = {
    table: new PlainTable(element),
    scroll: el("div", { class: "scroll", ...region }, element),
    count: el("span", { class: "count" }),
    none: el("p", { class: "none" }),
    more: el("p", { class: "hint more" }),
    note: badge("warn", ""),
  };
  parts.note.classList.add("note");
  const heading = el("h2", { id, text: `${title} ` }, parts.count);
  const panel = el(
    "section",
    { class: "panel", "data-panel": key, "aria-labelledby": id },
    el("div", { class: "panel-head" }, heading),
    parts.note,
    parts.scroll,
    parts.none,
    parts.more,
  );
  panel.parts = parts;
  return panel;
}
