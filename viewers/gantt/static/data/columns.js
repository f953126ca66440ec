/** Columns packed by Python: unpacked, and their times restored. */

// Unpacks start times and durations of lanes; viewers/gantt/packing.py packs them.

/** Undo the mapping of 0, -1, 1, -2, ... to 0, 1, 2, 3, ... */
function unfolded(value) {
  return value % 2 ? -(value + 1) / 2 : value / 2;
}

/** Return the running sums of differences, the first of them from 0. */
export function sums(differences) {
  let sum = 0;
  return Float64Array.from(differences, (step) => (sum += step));
}

/** Return the running sums of folded differences. */
export function foldedSums(folded) {
  return sums(Float64Array.from(folded, unfolded));
}

/** Convert a number that is packed plus 1, since 0 stands for an unknown one. */
export function known(packed) {
  return packed ? packed - 1 : null;
}

/** Unpack all columns of an object. */
export async function unpackAll(packed) {
  return Object.fromEntries(await Promise.all(Object.entries(packed).map(async ([key, column]) => [key, await unpack(column)])));
}

/** Write the starts of a lane whose intervals store the gap to the end of the one before. */
function fromGaps(first, begin, end, { delta, start, duration }) {
  let time = first;
  for (let i = begin; i < end; i++) {
    start[i] = time + unfolded(delta[i]);
    time = start[i] + duration[i];
  }
}

/** Write starts and durations of idle intervals: what the phases from `low` to `high` leave, and how far they are not. */
function fromPhases(first, begin, end, low, high, { delta, start, duration }) {
  let time = first, place = low;
  for (let i = begin; i < end; i++) {
    for (; place < high && (start[place] <= time || !duration[place]); place++) if (duration[place]) time = Math.max(time, start[place] + duration[place]);
    start[i] = time + delta[i];
    let following = place;
    while (following < high && (start[following] < start[i] || !duration[following])) following++;
    duration[i] = unfolded(duration[i]) + (following < high ? start[following] - start[i] : 0);
    time = start[i] + duration[i];
  }
}

/** Return the starts of all lanes, and their durations; `offsets` are those of the lanes in the columns. */
export function timesOf(lanes, offsets, delta, packed) {
  // Idle intervals change theirs, which may need more than 32 bits then.
  const columns = { delta, start: new Float64Array(delta.length), duration: new Float64Array(packed) };
  let phases = -1;
  lanes.forEach(({ role, first, times }, i) => {
    if (role === "phases") phases = i;
    const begin = offsets[i], end = offsets[i + 1];
    if (times === "gaps") fromGaps(first, begin, end, columns);
    else if (times === "rest") fromPhases(first, begin, end, offsets[phases], offsets[phases + 1], columns);
    else for (let j = begin, time = first; j < end; j++) columns.start[j] = time += delta[j];
  });
  const { start, duration } = columns;
  return { start, duration: duration.every((ns) => ns < 2 ** 32) ? new Uint32Array(duration) : duration };
}

const TYPES = { Uint8: Uint8Array, Uint16: Uint16Array, Uint32: Uint32Array };

/** Return the bytes of a text in base64. */
export function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Undo the byte planes: all first bytes, then all second bytes, and so on. */
export function joinPlanes(planes, size) {
  if (size === 1) return planes;
  const bytes = Math.min(size, 4), words = size / bytes, count = planes.byteLength / size;
  const values = new (bytes === 2 ? Uint16Array : Uint32Array)(count * words);
  for (let word = 0; word < words; word++) {
    const [a, b, c, d] = Array.from({ length: bytes }, (_, plane) => new Uint8Array(planes, (word * bytes + plane) * count, count));
    if (bytes === 2) for (let i = 0; i < count; i++) values[i] = a[i] | (b[i] << 8);
    else for (let i = 0, at = word; i < count; i++, at += words) values[at] = a[i] | (b[i] << 8) | (c[i] << 16) | (d[i] << 24);
  }
  return values.buffer;
}

function unzipped(base64) {
  return new Response(new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** Keep a connection to the server of a served page open; the server stops when the last one closes. `ended` is told if it has. */
export function keepServerAlive(scene, ended) {
  if (!scene.served) return;
  const connection = (globalThis.dptraceOpen = new EventSource("alive"));
  connection.onopen = () => ended(false);
  connection.onerror = () => ended(true);
  // A page that is left closes it, too.
  addEventListener("pagehide", () => connection.close());
}

/** Unpack one column: a typed array, or a Float64Array if a value does not fit in 32 bits. */
export async function unpack({ type, data, escapes }) {
  const Type = TYPES[type], values = new Type(joinPlanes(await unzipped(data).arrayBuffer(), Type.BYTES_PER_ELEMENT));
  if (!escapes.length) return values;
  const wide = new Float64Array(values);
  for (const [index, value] of escapes) wide[index] = value;
  return wide;
}

/** Unpack all columns of a scene. */
export async function columnsOf(scene) {
  const { streams, ...own } = scene.columns, { delta, duration: packed, ...columns } = await unpackAll(own);
  const offsets = new Int32Array(scene.lanes.length + 1);
  scene.lanes.forEach((lane, i) => (offsets[i + 1] = offsets[i] + lane.count));
  const { start, duration } = timesOf(scene.lanes, offsets, delta, packed);
  // The columns "exposed", "wait" and "waitsFor" hold collectives only: collective i of a track is entry i - exposedFrom[track].
  const exposedFrom = [];
  let before = 0;
  scene.lanes.forEach((lane, i) => {
    if (lane.role !== "collectives") return;
    exposedFrom[lane.track] = offsets[i] - before;
    before += lane.count;
  });
  return { ...columns, start, duration, offsets, exposedFrom, categories: scene.categories.length };
}

/** Unpack texts: JSON, compressed, in base64. */
export function texts(packed) {
  return unzipped(packed).json();
}
