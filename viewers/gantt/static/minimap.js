/** The rows of the minimap: one for each GPU, its phases only; of more GPUs than it has room for, evenly chosen ones. */

const FRINGE = 1;
/** Pixels below which a row is no row, and above which there is room for a line between two. */
const LEAST = 2, PARTED = 4;

export function miniRows(scene, rows, height) {
  const phases = rows.filter((row) => row.role === "phases");
  const count = Math.min(phases.length, Math.floor((height - 2 * FRINGE) / LEAST)), each = (height - 2 * FRINGE) / count;
  return Array.from({ length: count }, (_, i) => {
    const row = phases[Math.floor((i * phases.length) / count)];
    return { ...row, y: FRINGE + i * each, h: each - (each > PARTED ? 1 : 0), separated: -1 };
  });
}
