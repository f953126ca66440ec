/** The legend: a button for each category, which hides it and shows it again. */

/** Fill `root` with chips, and `causes` with those of why GPUs were idle; `hidden` by category, `redraw` after a change. */
export function categoryButtons(root, causes, scene, hidden, redraw) {
  for (const category of scene.order) {
    if (!scene.used.includes(category)) continue;
    const { label } = scene.categories[category], cause = scene.special.causes?.indexOf(category) ?? -1;
    const chip = document.createElement("button"), swatch = document.createElement("i");
    chip.type = "button";
    chip.className = cause >= 0 ? "chip cause" : "chip";
    chip.setAttribute("aria-pressed", "true");
    chip.title = "click to hide or show";
    swatch.style.backgroundColor = `var(--c${category})`;
    swatch.className = category === scene.special.exposed ? "hatched" : cause >= 0 ? `cause${cause}` : "";
    chip.append(swatch, category === scene.special.memory ? "Memory" : label);
    chip.addEventListener("click", () => {
      hidden[category] ^= 1;
      chip.setAttribute("aria-pressed", String(!hidden[category]));
      redraw();
    });
    // Causes of idling have a row of their own, and their chips come and go with it.
    (cause >= 0 ? causes : root).append(chip);
  }
}
