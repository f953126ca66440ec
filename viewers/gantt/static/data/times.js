/** Unpacks start times and durations of lanes; viewers/gantt/packing.py packs them. */

/** Undo the mapping of 0, -1, 1, -2, ... to 0, 1, 2, 3, ... */
function unfolded(value) {
  return value % 2 ? -(value + 1) / 2 : value / 2;
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
  const columns = { delta, start: new Float64Array(delta.length), duration: Float64Array.from(packed) };
  let phases = -1;
  lanes.forEach(({ role, first, times }, i) => {
    if (role === "phases") phases = i;
    const begin = offsets[i], end = offsets[i + 1];
    if (times === "gaps") fromGaps(first, begin, end, columns);
    else if (times === "rest") fromPhases(first, begin, end, offsets[phases], offsets[phases + 1], columns);
    else for (let j = begin, time = first; j < end; j++) columns.start[j] = time += delta[j];
  });
  const longest = columns.duration.reduce((most, ns) => Math.max(most, ns), 0);
  return { start: columns.start, duration: longest < 2 ** 32 ? Uint32Array.from(columns.duration) : columns.duration };
}
