// The token of --admin-token-file: asked for when required, kept for this tab only.

import { byId, setText } from "./dom.js";

const KEY = "isthmus-token";

/** Asks for the token, keeps it, and gives the header. */
export class Token {
  #asking = null;

  /** The headers of a request, with the token if there is one. */
  headers() {
    const token = sessionStorage.getItem(KEY);
    return token ? { Authorization: `Bearer ${token}` } : {};
  }

  /** The program answered 401: ask; resolves when a token was entered. */
  refused(hadOne) {
    sessionStorage.removeItem(KEY);
    setText(byId("token-wrong"), hadOne ? "That token was not accepted." : "");
    this.#asking ??= this.#ask().finally(() => (this.#asking = null));
    return this.#asking;
  }

  /** Ask again if the reader closed the dialog without an answer. */
  show() {
    const dialog = byId("token-dialog");
    if (!this.#asking || dialog.open) return;
    dialog.showModal();
    byId("token-field").focus();
  }

  #ask() {
    const dialog = byId("token-dialog");
    const field = byId("token-field");
    field.value = "";
    if (!dialog.open) dialog.showModal();
    field.focus();
    return new Promise((resolve) => {
      byId("token-form").onsubmit = (event) => {
        event.preventDefault();
        const token = field.value.trim();
        if (!token) return;
        // A header takes ASCII only, and fetch() would throw.
        if (/[^\x21-\x7e]/.test(token)) {
          setText(byId("token-wrong"), "A token has no spaces and no special characters.");
          return;
        }
        sessionStorage.setItem(KEY, token);
        dialog.close();
        resolve();
      };
    });
  }
}
