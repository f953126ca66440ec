/** The columns of a served page's minimap: exact, of the whole run, fetched once for each width. */

export class Overview {
  #known = new Map();
  #asked = new Set();

  constructor(lod) {
    Object.assign(this, { lod, categories: lod.categories, changed: () => {} });
  }

  has(lane, category) {
    return this.lod.has(lane, category);
  }

  density(from, to, width, lanes, out) {
    out.fill(0);
    const key = [from, to, width, lanes].join();
    if (!this.#asked.has(key)) this.#fetch(key, from, to, width, lanes);
    const columns = this.#known.get(key);
    lanes.forEach((lane, place) => {
      for (const [k, plane] of columns?.get(lane) ?? [])
        for (let x = 0; x < width; x++) out[(place * this.categories + k) * width + x] = plane[x] / 255;
    });
    return out;
  }

  eachLong() {
    // No single interval is drawn: the columns hold them.
  }

  async #fetch(key, from, to, width, lanes) {
    this.#asked.add(key);
    const message = await this.lod.connection.message("view", { start: from, end: to, width, columns: lanes, raw: [], shortest: 0 });
    const columns = new Map();
    for (const { lane, categories } of message.head.columns) columns.set(lane, categories.map((k) => [k, message.take("u1", width)]));
    this.#known.set(key, columns);
    this.changed();
  }
}
