/** Creates SVG elements with attributes and text; no HTML is parsed. */

export function shape(tag, attributes = {}, text = undefined) {
  const node = document.createElementNS(document.querySelector("svg").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
