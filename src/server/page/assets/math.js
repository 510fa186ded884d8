// Formulas as MathML elements, which browsers draw; as they were written where tex.js does not know a command.

import {h} from "./dom.js";
import {parseTex} from "./tex.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";

export function mathElement(text, display) {
  let tree;
  try {
    tree = parseTex(text, display);
  } catch {
    return h("code", {class: "tex"}, text);
  }
  const element = build(tree);
  element.setAttribute("title", text);
  return element;
}

function build([tag, attributes, content]) {
  const element = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (typeof content === "string") element.textContent = content;
  else element.append(...content.map(build));
  return element;
}
