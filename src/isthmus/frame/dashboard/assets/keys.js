// Keyboard shortcuts that work everywhere on the page, except in text fields.

import { byId } from "./dom.js";

export function listenToKeys({ table, details, end, close }) {
  const help = byId("help-dialog");
  byId("help-open").addEventListener("click", () => help.showModal());
  byId("help-close").addEventListener("click", () => help.close());

  const acts = {
    "/": () => byId("search").focus(),
    "?": () => help.showModal(),
    j: () => walk(1),
    k: () => walk(-1),
    e: () => table.selected && end(table.selected),
    Escape: () => (details.tunnel ? close() : table.filter(null)),
  };

  function walk(by) {
    table.focus();
    table.move(by);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return; // a dialog has its own keys
    if (event.target === byId("search")) {
      searchKey(event);
      return;
    }
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  function searchKey(event) {
    if (event.key !== "Escape" && event.key !== "Enter") return;
    event.preventDefault();
    if (event.key === "Escape") {
      byId("search").value = "";
      byId("search").dispatchEvent(new Event("input"));
    }
    table.focus();
  }
}
