// TeX formulas, as models write them, into a tree of MathML: [tag, attributes, children or text]. Only what is known is
// converted; anything else throws TexFault, and the formula is then shown as it was written.

export class TexFault extends Error {}

const MAX_DEPTH = 60;

const LETTERS = {alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ϵ", varepsilon: "ε", zeta: "ζ", eta: "η",
  theta: "θ", vartheta: "ϑ", iota: "ι", kappa: "κ", lambda: "λ", mu: "μ", nu: "ν", xi: "ξ", pi: "π", varpi: "ϖ", rho: "ρ",
  varrho: "ϱ", sigma: "σ", varsigma: "ς", tau: "τ", upsilon: "υ", phi: "ϕ", varphi: "φ", chi: "χ", psi: "ψ", omega: "ω",
  Gamma: "Γ", Delta: "Δ", Theta: "Θ", Lambda: "Λ", Xi: "Ξ", Pi: "Π", Sigma: "Σ", Upsilon: "Υ", Phi: "Φ", Psi: "Ψ",
  Omega: "Ω", infty: "∞", partial: "∂", nabla: "∇", hbar: "ℏ", ell: "ℓ", Re: "ℜ", Im: "ℑ", aleph: "ℵ", emptyset: "∅",
  varnothing: "∅", angle: "∠", triangle: "△", top: "⊤", bot: "⊥", square: "□", Box: "□", blacksquare: "■", checkmark: "✓"};

const OPERATORS = {times: "×", div: "÷", cdot: "⋅", pm: "±", mp: "∓", ast: "∗", star: "⋆", circ: "∘", bullet: "∙",
  oplus: "⊕", otimes: "⊗", odot: "⊙", cup: "∪", cap: "∩", setminus: "∖", wedge: "∧", land: "∧", vee: "∨", lor: "∨",
  neg: "¬", lnot: "¬", le: "≤", leq: "≤", ge: "≥", geq: "≥", ne: "≠", neq: "≠", ll: "≪", gg: "≫", approx: "≈", sim: "∼",
  simeq: "≃", cong: "≅", equiv: "≡", propto: "∝", in: "∈", notin: "∉", ni: "∋", subset: "⊂", supset: "⊃", subseteq: "⊆",
  supseteq: "⊇", forall: "∀", exists: "∃", nexists: "∄", to: "→", rightarrow: "→", leftarrow: "←", gets: "←",
  leftrightarrow: "↔", Rightarrow: "⇒", Leftarrow: "⇐", Leftrightarrow: "⇔", implies: "⟹", iff: "⟺", mapsto: "↦",
  longrightarrow: "⟶", uparrow: "↑", downarrow: "↓", mid: "∣", nmid: "∤", parallel: "∥", perp: "⊥", colon: ":",
  ldots: "…", dots: "…", dotsc: "…", cdots: "⋯", dotsb: "⋯", vdots: "⋮", ddots: "⋱", therefore: "∴", because: "∵",
  prime: "′", lbrace: "{", rbrace: "}", "{": "{", "}": "}", "|": "‖", Vert: "‖", vert: "|", lvert: "|", rvert: "|", lVert: "‖",
  rVert: "‖", langle: "⟨", rangle: "⟩", lceil: "⌈", rceil: "⌉", lfloor: "⌊", rfloor: "⌋", backslash: "\\", models: "⊨",
  vdash: "⊢", prec: "≺", succ: "≻", asymp: "≍", lesssim: "≲", gtrsim: "≳", degree: "°", dagger: "†", "#": "#", "%": "%",
  $: "$", _: "_", "&": "&"};

const LARGE = {sum: "∑", prod: "∏", coprod: "∐", bigcup: "⋃", bigcap: "⋂", bigoplus: "⨁", bigotimes: "⨂", bigvee: "⋁",
  bigwedge: "⋀"};
const INTEGRALS = {int: "∫", iint: "∬", iiint: "∭", oint: "∮"};
const FUNCTIONS = new Set(["sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh",
  "log", "ln", "lg", "exp", "det", "dim", "ker", "deg", "arg", "gcd", "hom", "Pr"]);
const LIMITS = new Set(["lim", "max", "min", "sup", "inf", "limsup", "liminf", "argmax", "argmin"]);
const ACCENTS = {hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", overrightarrow: "→", tilde: "~", widetilde: "~",
  dot: "˙", ddot: "¨", check: "ˇ", acute: "´", grave: "`"};
const SPACES = {",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.25em", quad: "1em", qquad: "2em",
  enspace: "0.5em", thinspace: "0.17em"};
const FENCES = {matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"],
  Vmatrix: ["‖", "‖"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], array: ["", ""],
  gathered: ["", ""], gather: ["", ""], "gather*": ["", ""], split: ["", ""], equation: ["", ""], "equation*": ["", ""],
  smallmatrix: ["", ""]};
const ALIGNED = new Set(["aligned", "align", "align*", "split"]);

// Where Unicode's mathematical alphabets begin, and the letters that were there before them.
const ALPHABETS = {
  mathbb: {upper: 0x1d538, lower: 0x1d552, digit: 0x1d7d8, odd: {C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ"}},
  mathbf: {upper: 0x1d400, lower: 0x1d41a, digit: 0x1d7ce, odd: {}},
  boldsymbol: {upper: 0x1d468, lower: 0x1d482, digit: 0x1d7ce, odd: {}},
  mathcal: {upper: 0x1d49c, lower: 0x1d4b6, odd: {B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ"}},
  mathfrak: {upper: 0x1d504, lower: 0x1d51e, odd: {C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ"}},
};

const node = (tag, children, attributes = {}) => [tag, attributes, children];
const operator = (text, attributes = {}) => node("mo", text, attributes);
const row = (nodes) => (nodes.length === 1 ? nodes[0] : node("mrow", nodes));

export function parseTex(text, display = false) {
  const parser = new TexParser(text, display);
  const nodes = parser.sequence(() => false);
  if (parser.token !== null) throw new TexFault(`unexpected ${parser.token}`);
  return node("math", [row(nodes)], display ? {display: "block"} : {});
}

class TexParser {
  constructor(text, display) {
    this.tokens = text.match(/\\(?:operatorname\*|[a-zA-Z]+|[^])|\d+(?:[.,]\d+)*|[^\s\\]|\s+/gu) ?? [];
    this.at = 0;
    this.depth = 0;
    this.display = display;
    this.#skipSpace();
  }

  get token() { return this.at < this.tokens.length ? this.tokens[this.at] : null; }

  next() {
    const token = this.token;
    if (token === null) throw new TexFault("the formula ends too soon");
    ++this.at;
    this.#skipSpace();
    return token;
  }

  #skipSpace() {
    while (this.at < this.tokens.length && /^\s/.test(this.tokens[this.at])) ++this.at;
  }

  // Nodes until `stop(token)` or the end.
  sequence(stop) {
    if (++this.depth > MAX_DEPTH) throw new TexFault("too deep");
    const nodes = [];
    while (this.token !== null && !stop(this.token)) {
      if (this.token === "}" || this.token === "&" || this.token === "\\\\" || this.token === "\\right" || this.token === "\\end") {
        throw new TexFault(`unexpected ${this.token}`);
      }
      const made = this.scripted();
      if (made) nodes.push(made);
    }
    --this.depth;
    return nodes;
  }

  // One thing with what stands above and below it.
  scripted() {
    const base = this.token === "^" || this.token === "_" ? node("mrow", []) : this.atom();
    if (!base) return null;
    let below = null, above = null, primes = "";
    for (;;) {
      if (this.token === "'") {
        primes += "′";
        this.next();
      } else if (this.token === "_" && !below) {
        this.next();
        below = this.argument();
      } else if (this.token === "^" && !above) {
        this.next();
        above = this.argument();
      } else if (this.token === "\\limits" || this.token === "\\nolimits") {
        base.limits = this.next() === "\\limits";
      } else {
        break;
      }
    }
    if (primes) above = above ? node("mrow", [operator(primes), above]) : operator(primes);
    const stacked = base.limits ?? false;
    if (below && above) return node(stacked ? "munderover" : "msubsup", [base, below, above]);
    if (below) return node(stacked ? "munder" : "msub", [base, below]);
    if (above) return node(stacked ? "mover" : "msup", [base, above]);
    return base;
  }

  // {…} or a single thing.
  argument() {
    if (this.token !== "{") {
      if (/^\d{2,}/.test(this.token ?? "")) { // x^23 means x^2 3
        const token = this.tokens[this.at];
        this.tokens.splice(this.at, 1, token[0], token.slice(1));
      }
      return this.atom() ?? node("mrow", []);
    }
    this.next();
    const nodes = this.sequence((token) => token === "}");
    this.next();
    return row(nodes);
  }

  // {…} as it stands, spaces included.
  rawArgument() {
    if (this.token !== "{") return this.next();
    let text = "", depth = 0;
    for (++this.at; this.at < this.tokens.length; ++this.at) {
      const token = this.tokens[this.at];
      if (token === "{") ++depth;
      if (token === "}" && depth-- === 0) {
        this.next();
        return text;
      }
      text += token;
    }
    throw new TexFault("} is missing");
  }

  atom() {
    const token = this.next();
    if (token === "{") {
      const nodes = this.sequence((one) => one === "}");
      this.next();
      return row(nodes);
    }
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return node("mn", token);
    if (/^\p{L}/u.test(token)) return node("mi", token);
    if (token === "~") return node("mspace", [], {width: "0.33em"});
    if (token === "-") return operator("−");
    if (token === "*") return operator("∗");
    if ("()[]|".includes(token)) return operator(token, {stretchy: "false"});
    return operator(token);
  }

  command(name) {
    const own = (table) => (Object.hasOwn(table, name) ? table[name] : undefined);
    if (own(LETTERS)) return node("mi", LETTERS[name], /^[A-Z]/.test(name) ? {mathvariant: "normal"} : {});
    if (own(OPERATORS)) return operator(OPERATORS[name], /^(l|r)?(vert|Vert)|[{}|]|brace|angle|ceil|floor/.test(name) ? {stretchy: "false"} : {});
    if (own(LARGE)) return this.#limits(operator(LARGE[name], {largeop: "true"}), this.display);
    if (own(INTEGRALS)) return operator(INTEGRALS[name], {largeop: "true"});
    if (FUNCTIONS.has(name)) return node("mi", name);
    if (LIMITS.has(name)) return this.#limits(node("mi", {limsup: "lim sup", liminf: "lim inf", argmax: "arg max", argmin: "arg min"}[name] ?? name), this.display);
    if (own(SPACES)) return node("mspace", [], {width: SPACES[name]});
    if (own(ACCENTS)) return node("mover", [this.argument(), operator(ACCENTS[name], {stretchy: /^(over|wide)/.test(name) ? "true" : "false"})], {accent: "true"});
    if (own(ALPHABETS)) return this.#alphabet(ALPHABETS[name]);
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": return node("mfrac", [this.argument(), this.argument()]);
      case "binom": case "dbinom": case "tbinom":
        return node("mrow", [operator("("), node("mfrac", [this.argument(), this.argument()], {linethickness: "0"}), operator(")")]);
      case "sqrt": return this.#root();
      case "text": case "textrm": case "textbf": case "textit": case "mbox": case "texttt": case "textsf":
        return node("mtext", this.rawArgument().replace(/\\([%$_#&{} ])/g, "$1").replace(/^ | $/g, "\u00a0"));
      case "mathrm": case "operatorname": case "operatorname*": case "mathsf": case "mathtt": case "mathit": case "rm": {
        if (name === "rm") return null;
        const text = this.rawArgument();
        if (!/^[\p{L}\p{N} .,/~-]*$/u.test(text)) throw new TexFault(`\\${name}`);
        return node("mi", text.replace(/~/g, "\u00a0"), {mathvariant: "normal"});
      }
      case "left": return this.#fenced();
      case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr": case "biggl":
      case "biggr": case "middle": return operator(this.#delimiter(), {stretchy: "true"});
      case "begin": return this.#environment();
      case "underline": return node("munder", [this.argument(), operator("_", {stretchy: "true"})]);
      case "underbrace": return this.#limits(node("munder", [this.argument(), operator("⏟", {stretchy: "true"})]), true);
      case "overbrace": return this.#limits(node("mover", [this.argument(), operator("⏞", {stretchy: "true"})]), true);
      case "overset": case "stackrel": {
        const above = this.argument();
        return node("mover", [this.argument(), above]);
      }
      case "underset": {
        const below = this.argument();
        return node("munder", [this.argument(), below]);
      }
      case "boxed": return node("mrow", [this.argument()], {class: "boxed"});
      case "tag": return node("mtext", `\u2003(${this.rawArgument()})`);
      case "not": return operator({"=": "≠", "\\in": "∉", "<": "≮", ">": "≯", "\\equiv": "≢"}[this.next()] ?? fault("\\not"));
      case "pmod": return node("mrow", [node("mspace", [], {width: "0.5em"}), operator("("), node("mi", "mod"), node("mspace", [], {width: "0.3em"}), this.argument(), operator(")")]);
      case "bmod": case "mod": return operator("mod", {lspace: "0.3em", rspace: "0.3em"});
      case "displaystyle": case "textstyle": case "scriptstyle": case "nonumber": case "notag": return null;
      default: throw new TexFault(`\\${name}`);
    }
  }

  #limits(made, stacked) {
    made.limits = stacked;
    return made;
  }

  #alphabet({upper, lower, digit, odd}) {
    const text = this.rawArgument().trim();
    let result = "";
    for (const c of text.replace(/\\([a-zA-Z]+)/g, (_, name) => LETTERS[name] ?? fault(name))) {
      if (Object.hasOwn(odd, c)) result += odd[c];
      else if (/[A-Z]/.test(c)) result += String.fromCodePoint(upper + c.charCodeAt(0) - 65);
      else if (/[a-z]/.test(c)) result += String.fromCodePoint(lower + c.charCodeAt(0) - 97);
      else if (/\d/.test(c) && digit) result += String.fromCodePoint(digit + Number(c));
      else if (/[\p{L}\p{N}\s]/u.test(c)) result += c;
      else throw new TexFault(c);
    }
    return node("mi", result, {mathvariant: "normal"});
  }

  #root() {
    if (this.token !== "[") return node("msqrt", [this.argument()]);
    this.next();
    const index = row(this.sequence((token) => token === "]"));
    this.next();
    return node("mroot", [this.argument(), index]);
  }

  #delimiter() {
    const token = this.next();
    if (token === ".") return "";
    if (token[0] !== "\\") return token;
    const name = token.slice(1);
    if (!Object.hasOwn(OPERATORS, name)) throw new TexFault(token);
    return OPERATORS[name];
  }

  #fenced() {
    const open = this.#delimiter();
    const inner = this.sequence((token) => token === "\\right");
    this.next();
    const close = this.#delimiter();
    return node("mrow", [operator(open, {stretchy: "true"}), ...inner, operator(close, {stretchy: "true"})]);
  }

  #environment() {
    const name = this.rawArgument();
    if (!Object.hasOwn(FENCES, name)) throw new TexFault(`\\begin{${name}}`);
    if (name === "array") this.rawArgument(); // its columns are centred
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(node("mtd", this.sequence((token) => token === "&" || token === "\\\\" || token === "\\end")));
      const token = this.next();
      if (token === "\\\\") rows.push([]);
      else if (token === "\\end") break;
    }
    if (this.rawArgument() !== name) throw new TexFault("\\end of something else");
    if (rows.at(-1).length === 1 && rows.at(-1)[0][2].length === 0) rows.pop(); // after a last line's end
    const kind = ALIGNED.has(name) ? "tex-aligned" : name === "cases" ? "tex-cases" : "tex-matrix";
    const table = node("mtable", rows.map((cells) => node("mtr", cells)), {class: kind});
    const [open, close] = FENCES[name];
    if (!open && !close) return table;
    return node("mrow", [operator(open, {stretchy: "true"}), table, operator(close, {stretchy: "true"})]);
  }
}

function fault(what) {
  throw new TexFault(what);
}
