/** Put a page's one Bokeh figure in its place, and say so. */

async function start() {
  await globalThis.Bokeh.embed.embed_item(JSON.parse(document.getElementById("plot").textContent));
  document.documentElement.dataset.ready = "1";
}

start();
