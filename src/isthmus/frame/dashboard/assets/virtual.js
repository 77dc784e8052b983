// A list of any length with a bounded number of rows in the page: those in sight, and a few more.

import { el } from "./dom.js";

const SPARE = 6; // rows above and below what can be seen

/**
 * `scroller` is the element that scrolls, `body` the one inside it that holds the rows.
 * `make()` gives an empty row, `fill(row, item, index)` writes an item into one. The height of a
 * row is the custom property --row-height, which CSS sets for each width.
 */
export class VirtualRows {
  #scroller;
  #body;
  #make;
  #fill;
  #rows = [];
  #items = [];
  #height = 48;
  #most = 0; // the most rows so far: the list grows, and never shrinks while it is read

  constructor({ scroller, body, make, fill }) {
    this.#scroller = scroller;
    this.#body = body;
    this.#make = make;
    this.#fill = fill;
    scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.#measure()).observe(scroller);
    this.#measure();
  }

  show(items) {
    this.#items = items;
    this.draw();
  }

  /** Scroll an index into view, by as little as possible. */
  reveal(index) {
    const head = this.#body.offsetTop;
    const top = index * this.#height;
    const seen = this.#scroller.clientHeight - head;
    if (top < this.#scroller.scrollTop) this.#scroller.scrollTop = top;
    else if (top + this.#height > this.#scroller.scrollTop + seen) {
      this.#scroller.scrollTop = top + this.#height - seen;
    }
  }

  /** How many rows fit: the step of Page Up and Page Down. */
  get page() {
    return Math.max(1, Math.floor(this.#scroller.clientHeight / this.#height) - 1);
  }

  draw() {
    const height = this.#height;
    this.#setHeight();
    const seen = Math.ceil(this.#scroller.clientHeight / height);
    const first = Math.max(0, Math.floor(this.#scroller.scrollTop / height) - SPARE);
    const last = Math.min(this.#items.length, first + seen + 2 * SPARE);
    while (this.#rows.length < last - first) {
      const row = this.#make();
      this.#rows.push(row);
      this.#body.append(row);
    }
    // Each index keeps its row while in sight: scrolling changes few rows, which helps screen readers.
    const size = this.#rows.length;
    const used = new Set();
    for (let index = first; index < last; index += 1) {
      const row = this.#rows[index % size];
      used.add(row);
      row.style.setProperty("transform", `translateY(${index * height}px)`);
      row.hidden = false;
      this.#fill(row, this.#items[index], index);
    }
    for (const row of this.#rows) {
      if (used.has(row)) continue;
      row.hidden = true;
      row.removeAttribute("id"); // another row may have that index by now
    }
  }

  #measure() {
    const said = getComputedStyle(this.#scroller).getPropertyValue("--row-height");
    const height = parseFloat(said) || 48;
    if (height !== this.#height) this.#scroller.scrollTop *= height / this.#height;
    this.#height = height;
    this.draw();
  }

  #setHeight() {
    this.#most = Math.max(this.#most, Math.min(this.#items.length, 100));
    this.#body.style.setProperty("height", `${this.#items.length * this.#height}px`);
    this.#body.style.setProperty("min-height", `${this.#most * this.#height}px`);
  }
}

/** A cell of a row, made once. */
export function cell(names, ...children) {
  return el("div", { class: `cell ${names}`, role: "gridcell" }, ...children);
}
