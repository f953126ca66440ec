/** The legend: a button per category that hides or shows it. */

import { element } from "../../../base/static/dom.js";

/**
 * Fill `root` with the buttons of all categories but the idle causes, and `causes` with those; `hidden` by category,
 * `redraw` is called after a change.
 */
export function categoryButtons(root, causes, scene, hidden, redraw) {
  for (const category of scene.order) {
    if (!scene.used.includes(category)) continue;
    const { label, pattern = "" } = scene.categories[category], cause = scene.special.causes?.indexOf(category) ?? -1;
    const chip = element("button", cause >= 0 ? "chip cause" : "chip");
    const swatch = element("i", pattern);
    chip.type = "button";
    chip.setAttribute("aria-pressed", "true");
    chip.title = "click to hide or show";
    swatch.style.backgroundColor = `var(--c${category})`;
    chip.append(swatch, category === scene.special.memory ? "Memory" : label);
    chip.addEventListener("click", () => {
      hidden[category] ^= 1;
      chip.setAttribute("aria-pressed", String(!hidden[category]));
      redraw();
    });
    // The idle causes have a row of their own; their buttons are shown and hidden with it.
    (cause >= 0 ? causes : root).append(chip);
  }
}
