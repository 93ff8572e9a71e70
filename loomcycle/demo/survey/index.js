// Surveys the files of a volume and answers with a readable report.
//
// Tools: Glob, Grep, Read, Memory (scope "user"; without it the report just has no history).
// input.prompt: optional words to look for; every line that contains them is listed.
// Any tool may fail or be missing: its section is left out and named at the end.

const LANGUAGES = [
  ["Python", "*.py"],
  ["JavaScript", "*.js"],
  ["TypeScript", "*.ts"],
  ["Go", "*.go"],
  ["Rust", "*.rs"],
  ["Java", "*.java"],
  ["C", "*.[ch]"],
  ["C++", "*.cpp"],
  ["SQL", "*.sql"],
  ["Markdown", "*.md"],
  ["YAML", "*.y*ml"],
];
const OPENINGS = [
  "README.md", "README", "README.rst", "README.txt",
  "pyproject.toml", "package.json", "go.mod", "Cargo.toml", "Makefile",
];
const MARKERS = "\\b(TODO|FIXME|HACK|XXX)\\b";
const DEFINITIONS =
  "^\\s*(export\\s+|pub\\s+|public\\s+)*(async\\s+)?" +
  "(def|class|func|function|fn|interface|struct|trait|enum)\\s+\\w";
const MEMORY_KEY = "survey/latest";
const SHOWN = 8;

const problems = [];

function attempt(what, action) {
  try {
    return action();
  } catch (e) {
    problems.push(what + ": " + e.message);
    return undefined;
  }
}

// A tool's lines, without its "no matches" and without the note that something was cut off.
function lines(text) {
  if (!text || text === "no matches\n") return [];
  return text
    .split("\n")
    .filter((line) => line !== "" && !/^\[truncated at .*\]$/.test(line));
}

// How many files match; Glob lists a hundred of them and tells the total.
function globbed(pattern) {
  const text = Glob({ pattern });
  const cut = /\[truncated at max_results=\d+; (\d+) total matches\]/.exec(text || "");
  const paths = lines(text);
  return { paths, total: cut ? Number(cut[1]) : paths.length };
}

// Files of this name anywhere but below hidden folders at the top; folders are remembered.
const folders = new Set();
function everywhere(name) {
  const here = globbed(name);
  const below = globbed("[^.]*/**/" + name);
  for (const path of below.paths) folders.add(path.split("/")[0]);
  const paths = here.paths.concat(below.paths).filter((path) => !/__pycache__/.test(path));
  return { paths, total: here.total + below.total };
}

// Grep's counts over those folders as [path, number], most first, ties by path.
function counted(pattern) {
  const found = [];
  for (const folder of Array.from(folders).sort()) {
    for (const line of lines(Grep({ pattern, path: folder, output_mode: "count", head_limit: 500 }))) {
      const at = line.lastIndexOf(":");
      found.push([folder + "/" + line.slice(0, at), Number(line.slice(at + 1))]);
    }
  }
  return found
    .filter(([path]) => !/\/node_modules\//.test(path))
    .sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

const sum = (pairs) => pairs.reduce((total, pair) => total + pair[1], 0);
const plural = (n, noun) => n + " " + noun + (n === 1 ? "" : "s");
const clip = (text, size) => (text.length > size ? text.slice(0, size - 1) + "…" : text);
const literal = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

function firstParagraph(text) {
  const plain = text
    .split(/\n\s*\n/)
    .map((part) => part.replace(/^#+ .*$/gm, "").replace(/\s+/g, " ").trim());
  return clip(plain.find((part) => part !== "") || "", 300);
}

function top(pairs) {
  const shown = pairs.slice(0, SHOWN).map(([path, n]) => "- `" + path + "` " + n);
  if (pairs.length > SHOWN) shown.push("- and " + plural(pairs.length - SHOWN, "other file"));
  return shown;
}

function run(input) {
  const wanted = (input.prompt || "").trim();
  const report = [];
  const findings = {};

  const before = attempt("memory", () => Memory.get({ scope: "user", key: MEMORY_KEY }));
  const last = (before && before.value) || {};

  const everything = attempt("file list", () => everywhere("*"));
  if (everything) {
    findings.files = everything.total;
    const change = everything.total - last.files;
    const since = last.files === undefined
      ? ""
      : change === 0
        ? ", as many as in the last survey"
        : ", " + Math.abs(change) + (change > 0 ? " more" : " fewer") + " than in the last survey";
    report.push("# Survey", "", plural(everything.total, "file") + since + ".");
    if (everything.total === 0) report.push("There is nothing to read here.");
    else report.push("Changed last: `" + everything.paths.slice(0, 3).join("`, `") + "`.");
  } else {
    report.push("# Survey");
  }

  const languages = [];
  for (const [name, pattern] of LANGUAGES) {
    const found = attempt(name + " files", () => everywhere(pattern));
    if (found && found.total > 0) languages.push([name, found.total]);
  }
  languages.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  if (languages.length > 0) {
    findings.languages = Object.fromEntries(languages);
    report.push("", "## Languages", "");
    for (const [name, n] of languages) report.push("- " + name + ": " + plural(n, "file"));
  }

  const present = attempt("top folder", () => globbed("*").paths) || OPENINGS;
  const openings = OPENINGS.filter((name) => present.includes(name)).slice(0, 3);
  const texts = [];
  for (const name of openings) {
    const text = attempt(name, () => Read({ path: name }));
    if (text) texts.push([name, text]);
  }
  if (texts.length > 0) {
    report.push("", "## Where to start reading", "");
    for (const [name, text] of texts) {
      const title = /^# (.+)$/m.exec(text);
      const about = name.startsWith("README")
        ? firstParagraph(text)
        : plural(text.split("\n").length, "line");
      report.push("- `" + name + "`" + (title ? " (" + title[1].trim() + ")" : "") + ": " + about);
    }
  }

  const definitions = attempt("definitions", () => counted(DEFINITIONS));
  if (definitions && definitions.length > 0) {
    findings.definitions = sum(definitions);
    report.push("", "## Functions and types", "");
    const where = plural(definitions.length, "file");
    report.push(plural(findings.definitions, "definition") + " in " + where + ".");
    report.push(...top(definitions));
  }

  const markers = attempt("markers", () => counted(MARKERS));
  if (markers) {
    findings.markers = sum(markers);
    report.push("", "## Left to do", "");
    report.push(markers.length === 0 ? "No markers." : plural(findings.markers, "marker") + ":");
    report.push(...top(markers));
  }

  if (wanted !== "") {
    const hits = attempt("search", () => lines(Grep({
      pattern: literal(wanted), case_insensitive: true, output_mode: "content", head_limit: 20,
    })));
    if (hits) {
      report.push("", "## “" + clip(wanted, 60) + "”", "");
      if (hits.length === 0) report.push("Not found.");
      for (const hit of hits) report.push("- " + clip(hit.replace(/\s+/g, " "), 160));
    }
  }

  attempt("memory", () => Memory.set({ scope: "user", key: MEMORY_KEY, value: findings }));
  if (problems.length > 0) {
    report.push("", "## Could not look", "");
    for (const problem of problems) report.push("- " + clip(problem, 200));
  }
  return { final_text: report.join("\n") + "\n" };
}
