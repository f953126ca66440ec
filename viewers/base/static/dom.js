/** Creates elements with textContent only, never HTML: names in traces are untrusted. */

export function element(tag, className = "", text = undefined) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Return a line of a tooltip. */
export function line(text, className = "") {
  return element("div", className, text);
}

/** Return a button; `more` are further properties, such as `onclick`. */
export function button(className, text, more) {
  return Object.assign(element("button", className, text), { type: "button", ...more });
}

/** Return a table of texts or nodes; a row may carry a `className`. Its first cell names the row. */
export function table(head, rows, className = "figures") {
  const node = element("table", className), body = element("tbody");
  const filled = (cell, content = "") => {
    cell.append(content);
    return cell;
  };
  const heading = (content, scope) => filled(Object.assign(element("th"), { scope }), content);
  if (head) {
    node.append(element("thead"));
    node.tHead.insertRow().append(...head.map((text) => heading(text, "col")));
  }
  for (const cells of rows) {
    const row = element("tr", cells.className), [name, ...others] = cells;
    row.append(heading(name, "row"), ...others.map((content) => filled(element("td"), content)));
    body.append(row);
  }
  node.append(body);
  return node;
}

/** Compare two values of a column: numbers by size, texts by letters and the numbers in them, what is unknown last. */
function byValue(one, other, sign) {
  const unknown = (value) => value === null || value === undefined || value === "";
  if (unknown(one) || unknown(other)) return unknown(one) - unknown(other);
  return sign * (typeof one === "number" ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true }));
}

/**
 * Return a table whose headings sort its rows { cells, values, className, last }; those that are `last` stay there. The
 * chosen `sorting` { column, down } is kept in that object. With `resort`, the rows are sorted already: it makes others.
 */
export function sortable(head, rows, sorting = {}, resort = null) {
  const node = table(head.map((text, column) => button("sort", text, { title: "Sort by this column", onclick: () => choose(column) })), rows.map(({ cells, className }) => Object.assign(cells, { className })));
  const [body] = node.tBodies, listed = rows.map((row, place) => ({ ...row, place, node: body.rows[place] }));
  const sort = () => {
    const { column, down } = sorting, sign = down ? -1 : 1;
    if (!(column in head)) return;
    if (!resort) listed.sort((a, b) => Boolean(a.last) - Boolean(b.last) || byValue(a.values[column], b.values[column], sign) || a.place - b.place);
    body.append(...listed.map((row) => row.node));
    [...node.tHead.rows[0].cells].forEach((cell, i) => (cell.ariaSort = i === column ? (down ? "descending" : "ascending") : null));
  };
  const choose = (column) => {
    // Numbers begin with the largest.
    Object.assign(sorting, { column, down: sorting.column === column ? !sorting.down : typeof rows[0]?.values[column] === "number" });
    if (resort) resort();
    else sort();
  };
  sort();
  return node;
}

/** Return a square in a category's color and pattern, as in the legend. */
export function swatch(category, { pattern = "" } = {}) {
  const node = element("i", pattern ? `swatch ${pattern}` : "swatch");
  node.style.backgroundColor = `var(--c${category})`;
  return node;
}

/** Return the name of a category with its color. */
export function named(category, look) {
  const node = element("span");
  node.append(swatch(category, look), look.label);
  return node;
}

/** Whether a key event belongs to an input field. */
export function typing({ target }) {
  return /^(INPUT|SELECT|TEXTAREA)$/.test(target?.tagName ?? "") || Boolean(target?.isContentEditable);
}

/** Offer a file to save; its name begins with the page's title. */
export function saveFile(blob, ending) {
  const title = (document.querySelector("h1")?.textContent ?? "").replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|-+$/g, "").slice(0, 60) || "gantt";
  const link = Object.assign(element("a"), { href: URL.createObjectURL(blob), download: title + ending });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Copy a text; resolves to whether that worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from other machines have no clipboard without HTTPS.
    const area = Object.assign(element("textarea"), { value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
