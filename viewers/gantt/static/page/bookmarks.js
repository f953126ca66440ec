/**
 * Bookmarks: views with a note. They last as long as the tab, and a page in one file can be saved with them and with what it
 * shows: as it was loaded, since nothing that was drawn can be opened again, with one more island.
 */

import { button, element, saveFile } from "../../../base/static/dom.js";
import { stepClock } from "../data/rows.js";
import { spanText, visible } from "../data/text.js";
import { readView, writeView } from "../interaction/view.js";

const MAX_BOOKMARKS = 200, MAX_NOTE = 200;

/** Return the bookmarks of a file or a tab that are as this page writes them. */
function valid(list) {
  const own = Array.isArray(list) ? list.slice(0, MAX_BOOKMARKS).filter((one) => typeof one?.note === "string" && one.note.length <= MAX_NOTE) : [];
  return own.map(({ note, view }) => ({ note, view: writeView(readView(view)) }));
}

/** The page as it was loaded, and what it was saved with. */
export class LoadedPage {
  constructor({ served }) {
    this.root = served ? null : document.documentElement.cloneNode(true);
    const { view = "", bookmarks } = JSON.parse(document.getElementById("kept")?.textContent ?? "{}");
    this.bookmarks = valid(bookmarks);
    if (!location.hash && view) history.replaceState(history.state, "", writeView(readView(view)) || location.pathname + location.search);
  }

  /** Add what comes after the script that has made the copy. */
  complete(node) {
    this.root?.querySelector("body").append(node);
  }

  /** Save the page with something to keep. */
  save(kept) {
    const island = Object.assign(element("script"), { type: "application/json", id: "kept", textContent: JSON.stringify(kept).replaceAll("<", "\\u003c") });
    this.root.querySelector("#kept")?.remove();
    this.root.querySelector("#scene").before(island);
    saveFile(new Blob(["<!DOCTYPE html>\n", this.root.outerHTML], { type: "text/html" }), ".html");
  }
}

export class Bookmarks {
  constructor({ root, opener, views, loaded }) {
    Object.assign(this, { root, opener, views, note: root.querySelector("input"), items: root.querySelector("ol") });
    this.list = history.state?.bookmarks ? valid(history.state.bookmarks) : loaded.bookmarks;
    root.onkeydown = (event) => this.#key(event);
    root.querySelector(".add").onclick = () => this.#add();
    root.querySelector(".close").onclick = () => this.toggle(false);
    const save = root.querySelector(".save");
    save.hidden = !loaded.root;
    root.querySelector(".tab").hidden = !save.hidden;
    save.onclick = () => loaded.save({ view: views.text, bookmarks: this.list });
    this.#changed();
    // Whoever opens a file with bookmarks was sent them.
    if (loaded.bookmarks.length && !history.state?.bookmarks) this.toggle(true, false);
  }

  toggle(yes = this.root.hidden, focus = yes) {
    this.root.hidden = !yes;
    this.root.style.top = `${Math.max(8, this.opener.getBoundingClientRect().bottom + 6)}px`;
    this.opener.setAttribute("aria-expanded", String(yes));
    if (focus) this.note.focus();
    else if (this.root.contains(document.activeElement)) this.opener.focus();
  }

  #key(event) {
    if (event.key === "Escape") this.toggle(false);
    else if (event.key === "Enter" && event.target === this.note) this.#add();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #add() {
    if (this.list.length >= MAX_BOOKMARKS) return;
    this.list = [...this.list, { note: this.note.value.trim().slice(0, MAX_NOTE), view: this.views.text }];
    this.note.value = "";
    this.#changed();
  }

  #placeOf(view) {
    const { t, step } = readView(view);
    return [step && visible(step), t ? spanText(...t.split(",").map(Number), stepClock(this.views.page.scene)) : "whole run"].filter(Boolean).join(" · ");
  }

  #changed() {
    const { list } = this;
    this.views.keep({ bookmarks: list });
    this.opener.textContent = list.length ? `★ ${list.length}` : "★";
    this.items.replaceChildren(...list.map((one) => {
      const item = element("li"), place = this.#placeOf(one.view), title = visible(one.note) || place;
      const remove = button("close", "×", { title: "Delete this bookmark", ariaLabel: `Delete ${title}`, onclick: () => {
        this.list = list.filter((other) => other !== one);
        this.#changed();
        this.note.focus();
      } });
      item.append(button("link", title, { onclick: () => this.views.go(one.view) }), element("span", "quiet", one.note ? place : ""), remove);
      return item;
    }));
  }
}
