/** Elements whose text is only ever text: names in traces are hostile until shown otherwise. */

export function element(tag, className = "", text = undefined) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A table of text: `head` and `rows` of cells, numbers to the right from the second column on. */
export function table(head, rows, className = "figures") {
  const made = element("table", className), body = element("tbody");
  if (head) {
    const top = element("tr");
    for (const cell of head) {
      const th = element("th", "", cell);
      th.scope = "col";
      top.append(th);
    }
    made.append(element("thead"));
    made.tHead.append(top);
  }
  for (const cells of rows) {
    const row = element("tr", cells.className ?? "");
    cells.forEach((cell, i) => row.append(cell instanceof Node ? wrapped(cell) : element(i ? "td" : "th", "", cell)));
    if (row.firstChild?.tagName === "TH") row.firstChild.scope = "row";
    body.append(row);
  }
  made.append(body);
  return made;
}

function wrapped(node) {
  const cell = element("th");
  cell.append(node);
  return cell;
}

/** A square in a category's color, as in the legend. */
export function swatch(category, hatched = false) {
  const made = element("i", hatched ? "swatch hatched" : "swatch");
  made.style.backgroundColor = `var(--c${category})`;
  return made;
}

/** Tell whether keys that are pressed belong to a field. */
export function typing({ target }) {
  return /^(INPUT|SELECT|TEXTAREA)$/.test(target?.tagName ?? "") || Boolean(target?.isContentEditable);
}
