import assert from "node:assert/strict";
import test from "node:test";

import { SvgContext } from "../../viewers/gantt/static/saving/svg_context.js";
import { boxesOf, colorOf } from "../../viewers/gantt/static/saving/vector_rows.js";

const made = (options) => new SvgContext({ width: 100, height: 50, paper: "#ffffff", ...options });

test("runs of one color in neighbouring columns are one rectangle", () => {
  // a a b
  // a a b
  // . b b
  const [a, b] = [0xff0000ff, 0xff00ff00], image = Uint32Array.of(a, a, b, a, a, b, 0, b, b);
  assert.deepEqual(boxesOf(image, 3, 3), new Map([[a, [0, 0, 2, 2]], [b, [1, 2, 1, 1, 2, 0, 1, 3]]]));
});

test("rectangles cover each pixel of any image once", () => {
  const width = 40, height = 9, image = Uint32Array.from({ length: width * height }, (_, i) => (Math.imul(i, 2654435761) >>> 28) % 3);
  const again = new Uint32Array(width * height);
  for (const [pixel, boxes] of boxesOf(image, width, height))
    for (let i = 0; i < boxes.length; i += 4)
      for (let y = boxes[i + 1]; y < boxes[i + 1] + boxes[i + 3]; y++)
        for (let x = boxes[i]; x < boxes[i] + boxes[i + 2]; x++) again[y * width + x] += pixel;
  assert.deepEqual(again, image);
});

test("a pixel is written as a color, with its opacity", () => {
  assert.deepEqual([colorOf(0xff3c6e1f), colorOf(0x48000001)], ["#1f6e3c", "#01000048"]);
});

test("texts are escaped, and closed groups are closed once", () => {
  const context = made();
  context.save();
  context.rect(0, 0, 10, 10);
  context.clip();
  context.fillText("<script>&\"", 1, 2);
  context.restore();
  context.restore();
  const svg = context.finish("a<b");
  assert.ok(svg.includes("&lt;script&gt;&amp;&quot;</text>") && svg.includes("<title>a&lt;b</title>"));
  assert.equal(svg.match(/<g /g).length, svg.match(/<\/g>/g).length);
});

test("a moved and turned text has its place and its font", () => {
  const context = made();
  Object.assign(context, { font: "600 13px Inter, 'Segoe UI'", textAlign: "center" });
  context.save();
  context.translate(10, 20);
  context.rotate(-Math.PI / 2);
  context.fillText("up", 0, 0);
  context.restore();
  context.fillText("flat", 3, 4);
  const [turned, flat] = context.finish("").split("\n").filter((line) => line.startsWith("<text"));
  assert.ok(turned.includes('transform="matrix(0 -1 1 0 10 20)"') && turned.includes('font-size="13"') && turned.includes('text-anchor="middle"') && turned.includes('font-weight="600"'));
  assert.ok(flat.includes('x="3" y="4"') && !flat.includes("transform"));
});

test("a color with a pattern is filled with it, defined once", () => {
  const context = made({ patterns: new Map([["#B42814", "hatch"]]) });
  assert.equal(context.filled("#b42814"), context.filled("#b42814"));
  assert.equal(context.filled("#000000"), "#000000");
  assert.equal(context.finish("").match(/<pattern /g).length, 1);
});
