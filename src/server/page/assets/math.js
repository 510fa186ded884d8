// Formulas. (First form: as they were written.)
import {h} from "./dom.js";
export function mathElement(text, display) {
  return h("code", {class: display ? "math display" : "math"}, text);
}
