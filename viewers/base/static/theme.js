/** Light and dark: which one holds, the colors that go with it, and who must draw anew when it changes. */

export const MODES = ["auto", "light", "dark"];

/** Colors and inks by category, and the page's own, as a theme of that name shows them. */
export function looks(scene, name) {
  const own = (entry) => (name === "dark" && entry.dark ? entry.dark : entry);
  return { name, categories: scene.categories.map((entry) => ({ color: own(entry).color, ink: own(entry).ink })), chrome: scene.chrome?.[name] ?? {} };
}

/** Names of the raster's patterns by category: of exposed communication, and of the causes of idling. */
export function patternsOf({ special: { exposed, causes = [] } }) {
  const patterns = { [exposed]: "hatch" };
  causes.forEach((category, i) => (patterns[category] = ["back", "dots", "bars", undefined, "rails"][i]));
  return patterns;
}

export class Theme {
  #listeners = [];
  #mode = "auto";
  #printing = false;

  /** `dark` is a media query: { matches, addEventListener }. */
  constructor(scene, root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)")) {
    Object.assign(this, { scene, root, dark });
    dark.addEventListener("change", () => this.#apply());
    // Paper is white; and what is drawn on it must be drawn before the page is printed.
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

  /** Call `listen` with the looks, now and whenever they change. */
  follow(listen) {
    this.#listeners.push(listen);
    listen(this.looks);
  }

  /** Exchange light and dark. */
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
