/** Draw a page's Bokeh figures in their places, light or dark as the system asks for. */

const dark = matchMedia("(prefers-color-scheme: dark)");
let views = [];

async function draw() {
  const look = dark.matches ? "dark" : "light";
  for (const view of views) view.clear();
  views = [];
  for (const place of document.querySelectorAll(".live > [id]")) {
    place.replaceChildren();
    const plot = document.getElementById(`plot-${place.id}-${look}`);
    views.push(await globalThis.Bokeh.embed.embed_item(JSON.parse(plot.textContent), place.id));
  }
  document.dispatchEvent(new CustomEvent("drawn", { detail: views }));
  Object.assign(document.documentElement.dataset, { ready: "1", look });
}

let drawn = draw();
dark.addEventListener("change", () => {
  drawn = drawn.then(draw);
});
