/** What all that draws on a canvas shares: frames in two colors, and the widths of texts. */

/** Frame a box { x, y, width, height } in a color, with a line of the page's color around it that is `halo` wider. */
export function frame(context, { x, y, width, height }, color, paper, thick, halo = 2) {
  for (const [strokeStyle, lineWidth] of [[paper, thick + halo], [color, thick]]) {
    Object.assign(context, { strokeStyle, lineWidth });
    context.strokeRect(x, y, width, height);
  }
}

/** Texts of a font whose widths are kept at most. */
const MAX_TEXTS = 20_000;
const FONTS = new Map();

/** Return a function that returns the width of a text in a font, in pixels. */
export function widthsIn(font) {
  if (!FONTS.has(font)) {
    const context = document.createElement("canvas").getContext("2d"), known = new Map();
    context.font = font;
    FONTS.set(font, (text) => {
      let width = known.get(text);
      if (width === undefined) {
        if (known.size > MAX_TEXTS) known.clear();
        known.set(text, (width = context.measureText(text).width));
      }
      return width;
    });
  }
  return FONTS.get(font);
}

/** Return a text that is at most `room` pixels wide; `cut(text, letters)` shortens it, to "" where too little would be left. */
export function fitted(text, room, widthOf, cut) {
  let short = text;
  for (let letters = Math.floor((text.length * room) / widthOf(text)); short && widthOf(short) > room; letters--) short = cut(text, letters);
  return short;
}
