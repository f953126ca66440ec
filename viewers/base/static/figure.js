/** Embeds a page's Bokeh figure in the system's color scheme, and sets `data-ready`. */

const dark = matchMedia("(prefers-color-scheme: dark)");
let view;

async function draw() {
  const look = dark.matches ? "dark" : "light";
  view?.clear();
  document.getElementById("figure").replaceChildren();
  view = await globalThis.Bokeh.embed.embed_item(JSON.parse(document.getElementById(`plot-${look}`).textContent));
  Object.assign(document.documentElement.dataset, { ready: "1", look });
}

let drawn = draw();
dark.addEventListener("change", () => {
  drawn = drawn.then(draw);
});
