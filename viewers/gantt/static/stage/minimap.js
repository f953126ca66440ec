/** The rows of the minimap: the phases of each GPU, or of evenly chosen GPUs if there is not enough room. */

const MARGIN = 1;
/** In pixels: minimum height of a row, and the height from which rows have a gap. */
const MIN_HEIGHT = 2, GAP_FROM = 4;

export function miniRows(scene, rows, height) {
  const phases = rows.filter((row) => row.role === "phases");
  const count = Math.min(phases.length, Math.floor((height - 2 * MARGIN) / MIN_HEIGHT)), each = (height - 2 * MARGIN) / count;
  return Array.from({ length: count }, (_, i) => {
    const row = phases[Math.floor((i * phases.length) / count)];
    return { ...row, y: MARGIN + i * each, h: each - (each > GAP_FROM ? 1 : 0), separated: -1 };
  });
}
