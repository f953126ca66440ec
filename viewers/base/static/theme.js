/** Light and dark theme: the current one, its colors, and the listeners that redraw when it changes. */

/** Font of all text on canvases; the style sheets name the same. */
export const FONT_FAMILY = "Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif";

const MODES = ["auto", "light", "dark"];

/** Return the colors of a theme: fill and text color by category, and `chrome`, the colors of the page itself. */
export function looks(scene, name) {
  const themed = (entry) => (name === "dark" && entry.dark ? entry.dark : entry);
  return { name, categories: scene.categories.map((entry) => ({ color: themed(entry).color, ink: themed(entry).ink })), chrome: scene.chrome?.[name] ?? {} };
}

/** Return the names of the raster's patterns by category. */
export function patternsOf({ categories }) {
  return Object.fromEntries(categories.flatMap(({ pattern }, category) => (pattern ? [[category, pattern]] : [])));
}

export class Theme {
  #listeners = [];
  #mode = "auto";
  #printing = false;

  /** `dark` is a media query: { matches, addEventListener }. */
  constructor(scene, root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)")) {
    Object.assign(this, { scene, root, dark });
    dark.addEventListener("change", () => this.#apply());
    // Pages are printed in the light theme, and the canvases must be redrawn before printing.
    globalThis.addEventListener?.("beforeprint", () => this.#print(true));
    globalThis.addEventListener?.("afterprint", () => this.#print(false));
    this.#apply();
  }

  get mode() {
    return this.#mode;
  }

  set mode(mode) {
    if (!MODES.includes(mode) || mode === this.#mode) return;
    this.#mode = mode;
    this.#apply();
  }

  get name() {
    if (this.#printing) return "light";
    return this.#mode === "auto" ? (this.dark.matches ? "dark" : "light") : this.#mode;
  }

  /** Call `listen` with the colors now and whenever they change. */
  follow(listen) {
    this.#listeners.push(listen);
    listen(this.looks);
  }

  /** Switch between light and dark. */
  toggle() {
    this.mode = this.name === "dark" ? "light" : "dark";
  }

  #print(yes) {
    this.#printing = yes;
    this.#apply();
  }

  #apply() {
    const { name } = this;
    if (this.looks?.name === name) return;
    this.looks = looks(this.scene, name);
    this.root.dataset.theme = name;
    this.looks.categories.forEach(({ color, ink }, i) => {
      this.root.style.setProperty(`--c${i}`, color);
      this.root.style.setProperty(`--i${i}`, ink);
    });
    for (const listen of this.#listeners) listen(this.looks);
  }
}
