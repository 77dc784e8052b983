// Short tables: one row for each item, with the same elements from one update to the next.

import { badge, el, keyed, peerText, setAttr, setBadge, setPeer, setText } from "./dom.js";

/** A column of text from a peer. */
export function said(name, read, second = null) {
  return {
    name,
    make: () => [peerText("", "first"), ...(second ? [peerText("", "second")] : [])],
    fill: ([first, below], item) => {
      setPeer(first, read(item));
      if (below) setPeer(below, second(item));
    },
  };
}

/** A column of numbers. */
export function figure(name, read) {
  return {
    name,
    class: "num",
    make: () => [el("span")],
    fill: ([node], item) => setText(node, read(item)),
  };
}

/** A column of states: {level, text, mark}. */
export function stands(name, read) {
  return {
    name,
    make: () => [badge("idle", "")],
    fill: ([node], item) => {
      const { level, text, mark } = read(item);
      setBadge(node, level, text, mark);
    },
  };
}

/**
 * Fills a <table> that has a thead and a tbody. If `chosen(item)` is given, it is called on a click
 * and on Enter: Tab reaches one row, and the arrow keys the others.
 */
export class PlainTable {
  #table;
  #columns = [];
  #chosen;
  #reached = null; // the row that had focus last

  constructor(table, chosen = null) {
    this.#table = table;
    this.#chosen = chosen;
    if (chosen) table.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Set the columns; setting the same ones again changes nothing. */
  columns(columns) {
    if (columns === this.#columns) return;
    this.#columns = columns;
    const heads = columns.map(({ name, class: names = "" }) =>
      el("th", { scope: "col", class: names, text: name }),
    );
    this.#table.tHead.replaceChildren(el("tr", {}, ...heads));
    this.#table.tBodies[0].replaceChildren();
    this.#table.tBodies[0].keyedChildren = undefined;
  }

  show(items, keyOf) {
    const [body] = this.#table.tBodies;
    keyed(body, items, keyOf, () => this.#make(), (row, item) => this.#fill(row, item));
    if (this.#chosen) this.#reach(body);
  }

  #reach(body) {
    const one = this.#reached?.parentNode === body ? this.#reached : body.rows[0];
    for (const row of body.rows) setAttr(row, "tabindex", row === one ? "0" : "-1");
  }

  #key(event) {
    const row = event.target;
    if (!row.item || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = { ArrowDown: row.nextSibling, ArrowUp: row.previousSibling };
    if (event.key === "Enter" || event.key === " ") this.#chosen(row.item);
    else if (event.key in next) next[event.key]?.focus();
    else return;
    event.preventDefault();
  }

  #make() {
    const row = el("tr");
    row.cells_ = this.#columns.map(({ name, class: names = "", make }) => {
      const parts = make();
      // On narrow pages a row is a card, and this is the label of the cell.
      row.append(el("td", { class: names, "data-label": name }, ...parts));
      return parts;
    });
    if (this.#chosen) {
      row.classList.add("choosable");
      row.addEventListener("click", () => this.#chosen(row.item));
      row.addEventListener("focus", () => {
        this.#reached = row;
        this.#reach(row.parentNode);
      });
    }
    return row;
  }

  #fill(row, item) {
    row.item = item;
    this.#columns.forEach(({ fill }, index) => fill(row.cells_[index], item));
  }
}
