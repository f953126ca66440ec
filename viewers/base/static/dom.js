/** Creates elements with textContent only, never HTML: names in traces are untrusted. */

export function element(tag, className = "", text = undefined) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Return a table of text cells; a row may carry a `className`, and a cell may be a node. */
export function table(head, rows, className = "figures") {
  const node = element("table", className), body = element("tbody");
  if (head) {
    const top = element("tr");
    for (const cell of head) {
      const th = element("th", "", cell);
      th.scope = "col";
      top.append(th);
    }
    node.append(element("thead"));
    node.tHead.append(top);
  }
  for (const cells of rows) {
    const row = element("tr", cells.className ?? "");
    cells.forEach((cell, i) => row.append(cell instanceof Node ? wrapped(cell) : element(i ? "td" : "th", "", cell)));
    if (row.firstChild?.tagName === "TH") row.firstChild.scope = "row";
    body.append(row);
  }
  node.append(body);
  return node;
}

function wrapped(node) {
  const cell = element("th");
  cell.append(node);
  return cell;
}

/** Return a square in a category's color and pattern, as in the legend. */
export function swatch(category, { pattern = "" } = {}) {
  const node = element("i", pattern ? `swatch ${pattern}` : "swatch");
  node.style.backgroundColor = `var(--c${category})`;
  return node;
}

/** Whether a key event belongs to an input field. */
export function typing({ target }) {
  return /^(INPUT|SELECT|TEXTAREA)$/.test(target?.tagName ?? "") || Boolean(target?.isContentEditable);
}
