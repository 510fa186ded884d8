// Colours for code: comments, strings, numbers, keywords, and names that are called or defined. One table a family of
// languages; a scanner of regular expressions, not a parser.

const words = (text) => new Set(text.split(" "));

const C_WORDS = "if else for while do switch case default break continue return goto struct union enum typedef static const extern sizeof void int char short long float double unsigned signed bool true false";
const LANGUAGES = {
  c: {line: "//", block: ["/*", "*/"], words: words(`${C_WORDS} auto inline volatile register NULL`), at: "#"},
  cpp: {line: "//", block: ["/*", "*/"], at: "#", words: words(`${C_WORDS} auto inline volatile class public private protected namespace using template typename virtual override final new delete this nullptr try catch throw constexpr consteval noexcept operator explicit friend mutable concept requires co_await co_return co_yield`)},
  java: {line: "//", block: ["/*", "*/"], at: "@", words: words(`${C_WORDS} class interface extends implements public private protected final abstract import package new this super try catch finally throw throws null var record instanceof boolean byte string namespace using override async await get set fun val when object is in data sealed`)},
  js: {line: "//", block: ["/*", "*/"], quotes: "`", words: words("if else for while do switch case default break continue return function class extends new this super const let var import export from as async await yield try catch finally throw typeof instanceof in of delete void null undefined true false static get set interface type enum implements public private protected readonly namespace declare abstract")},
  go: {line: "//", block: ["/*", "*/"], quotes: "`", words: words("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var nil true false int string bool error byte rune float64 int64")},
  rust: {line: "//", block: ["/*", "*/"], at: "#", words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while i32 i64 u8 u32 u64 usize f32 f64 bool str String Option Some None Result Ok Err Vec")},
  swift: {line: "//", block: ["/*", "*/"], at: "@", words: words("let var func class struct enum protocol extension if else guard for while repeat switch case default break continue return import init deinit self Self super throw throws try catch async await nil true false in is as where public private static some any")},
  php: {line: "//", block: ["/*", "*/"], words: words("function class extends implements public private protected static if else elseif foreach for while switch case default break continue return echo new use namespace try catch finally throw null true false array const abstract interface trait fn match")},
  python: {line: "#", triple: true, at: "@", words: words("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case None True False self")},
  ruby: {line: "#", words: words("def end class module if elsif else unless case when while until for do begin rescue ensure return yield self nil true false and or not require attr_accessor attr_reader puts lambda proc")},
  shell: {line: "#", words: words("if then else elif fi for while do done case esac in function return export local readonly set unset shift exit echo cd source sudo")},
  sql: {line: "--", block: ["/*", "*/"], fold: true, words: words("select from where and or not in is null like between join left right inner outer full on as group by order having limit offset insert into values update set delete create table view index drop alter add primary key foreign references unique default check distinct union all exists case when then else end asc desc with returning count sum avg min max int integer text varchar boolean date timestamp")},
  lua: {line: "--", words: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while")},
  json: {words: words("true false null"), keys: true},
  config: {line: "#", words: words("true false null yes no on off"), keys: true},
  css: {block: ["/*", "*/"], words: words("important"), at: "@", keys: true},
  html: {markup: true},
  diff: {diff: true},
};

const ALIASES = {
  "c++": "cpp", cc: "cpp", cxx: "cpp", h: "cpp", hpp: "cpp", cuda: "cpp", objc: "cpp", glsl: "cpp", csharp: "java", cs: "java", "c#": "java",
  kotlin: "java", kt: "java", scala: "java", dart: "java", javascript: "js", jsx: "js", ts: "js", tsx: "js", typescript: "js",
  mjs: "js", golang: "go", rs: "rust", py: "python", python3: "python", rb: "ruby", sh: "shell", bash: "shell", zsh: "shell",
  console: "shell", dockerfile: "shell", makefile: "shell", cmake: "shell", r: "python", perl: "ruby", mysql: "sql",
  postgresql: "sql", sqlite: "sql", json5: "json", jsonc: "json", yaml: "config", yml: "config", toml: "config", ini: "config",
  conf: "config", scss: "css", less: "css", xml: "html", svg: "html", vue: "html", patch: "diff",
};

const quote = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const scanners = new Map();

function scannerOf(language) {
  const parts = [];
  if (language.line) parts.push(`(?<comment>${language.line === "#" ? "(?<![\\w$&{])" : ""}${quote(language.line)}[^\\n]*`);
  if (language.block) {
    const [open, close] = language.block.map(quote);
    parts.push(`${parts.length ? "" : "(?<comment>"}${open}[^]*?(?:${close}|$)`);
  }
  const comment = parts.length > 0 ? `${parts.join("|")})|` : "";
  const triple = language.triple ? '[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|\'\'\'[^]*?(?:\'\'\'|$))|[rbfuRBFU]{1,2}(?=["\'])|' : "";
  const ticks = language.quotes ? "`(?:[^`\\\\]|\\\\[^])*(?:`|$)|" : "";
  const string = `(?<string>${triple}${ticks}"(?:[^"\\\\\\n]|\\\\[^])*"?|'(?:[^'\\\\\\n]|\\\\[^]){0,4000}'?)|`;
  const number = "(?<number>\\b(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w{0,4}\\b)|";
  const at = language.at ? `(?<special>${quote(language.at)}[A-Za-z_]\\w*)|` : "";
  return new RegExp(`${comment}${string}${number}${at}(?<word>[A-Za-z_$][\\w$-]*)`, "g");
}

// [[kind or "", text], …], or null for a language that is not known. The texts joined are the text given.
export function highlight(text, name) {
  const key = name.toLowerCase();
  const id = Object.hasOwn(ALIASES, key) ? ALIASES[key] : key;
  if (!Object.hasOwn(LANGUAGES, id)) return null;
  const language = LANGUAGES[id];
  if (language.diff) return highlightDiff(text);
  if (language.markup) return highlightMarkup(text);
  if (!scanners.has(id)) scanners.set(id, scannerOf(language));
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(scanners.get(id))) {
    const {comment, string, number, word, special} = match.groups;
    const after = match.index + match[0].length;
    let kind = "";
    if (comment !== undefined) kind = "comment";
    else if (string !== undefined) kind = language.keys && /^\s*:/.test(text.slice(after, after + 20)) ? "name" : "string";
    else if (number !== undefined) kind = "number";
    else if (special !== undefined) kind = "keyword";
    else if (language.words.has(language.fold ? word.toLowerCase() : word)) kind = "keyword";
    else if (language.keys ? /^\s*[:=]/.test(text.slice(after, after + 20)) : text[after] === "(") kind = "name";
    if (kind === "") continue;
    if (match.index > end) pieces.push(["", text.slice(end, match.index)]);
    pieces.push([kind, match[0]]);
    end = after;
  }
  if (end < text.length) pieces.push(["", text.slice(end)]);
  return pieces;
}

function highlightDiff(text) {
  return text.split(/(?<=\n)/).map((line) =>
    [line.startsWith("+") ? "string" : line.startsWith("-") ? "number" : line.startsWith("@") ? "keyword" : "", line]);
}

function highlightMarkup(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(/(?<comment><!--[^]*?(?:-->|$))|(?<tag><\/?[A-Za-z][\w:-]*|\/?>)|(?<name>[A-Za-z_:@][\w:.-]*(?==))|(?<string>"[^"<>]*"|'[^'<>]*')/g)) {
    if (match.index > end) pieces.push(["", text.slice(end, match.index)]);
    const {comment, tag, name} = match.groups;
    pieces.push([comment ? "comment" : tag ? "keyword" : name ? "name" : "string", match[0]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) pieces.push(["", text.slice(end)]);
  return pieces;
}
