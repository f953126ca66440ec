/** Draws arrows from launches on the host to the intervals on the device. */

/** Length of an arrow's head, and distance from which a curve bends at most, in pixels. */
const HEAD = 7, BEND = 60;

/** Draw arrows { from: { x, y }, to: { x, y } }; points outside the frame are cut at its edges by the canvas. */
export function drawArrows(context, arrows, { mark, paper }) {
  context.save();
  context.lineJoin = "round";
  for (const arrow of arrows) {
    for (const [color, width] of [[paper, 4.5], [mark, 2]]) {
      context.strokeStyle = context.fillStyle = color;
      context.lineWidth = width;
      line(context, arrow);
    }
    head(context, arrow);
    context.beginPath();
    context.arc(arrow.from.x, arrow.from.y, 3, 0, 2 * Math.PI);
    context.fill();
  }
  context.restore();
}

/** A curve that leaves the launch and reaches the kernel vertically, since both rows are horizontal. */
function line(context, { from, to }) {
  const bend = Math.sign(to.y - from.y) * Math.min(BEND, Math.abs(to.y - from.y) / 2);
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.bezierCurveTo(from.x, from.y + bend, to.x, to.y - bend, to.x, to.y);
  context.stroke();
}

function head(context, { from, to }) {
  const back = to.y > from.y ? -HEAD : HEAD;
  context.beginPath();
  context.moveTo(to.x, to.y);
  context.lineTo(to.x - HEAD * 0.6, to.y + back);
  context.lineTo(to.x + HEAD * 0.6, to.y + back);
  context.closePath();
  context.fill();
}
