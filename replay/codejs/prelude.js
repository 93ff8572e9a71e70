/* The inside of the code-js sandbox: evaluated first in every fresh context, and the only code
 * there that is ours. It makes the engine deterministic, takes away what could reach outside,
 * binds the tools, and replays recorded calls until the first one that is not recorded.
 *
 * Program code may replace any built-in afterwards. So everything used below is taken from the
 * engine here, before the program runs, and nothing goes through a prototype the program owns.
 *
 * Compiling this is most of what a turn costs. No parenthesis opens it, because the engine would
 * read all that is inside twice, looking for the parameters of an arrow function.
 */
0, function () {
  "use strict";

  const MINT = 0, SEAL = 1, FEED = 2, RUN = 3, REPORT = 4;
  const EVALUATING = 0, RUNNING = 1, OVER = 2;
  const FAILED = "1";                    /* begins the answer of a call that failed; others: "0" */
  const MISPLACED = ": tools can only be called while run(input) is executing";
  const PROMISED = "run returned a Promise; nothing is awaited here, run must return its result";
  const OP_TOOLS = { __proto__: null, Memory: true, Channel: true };
  const PLAIN_PROPERTIES = {
    __proto__: null,
    constructor: 1, hasOwnProperty: 1, isPrototypeOf: 1, propertyIsEnumerable: 1,
    toLocaleString: 1, toString: 1, valueOf: 1, then: 1, catch: 1, finally: 1,
  };
  const KEPT_GLOBALS =
    "Object Error EvalError RangeError ReferenceError SyntaxError TypeError URIError " +
    "InternalError AggregateError SuppressedError Iterator Array parseInt parseFloat " +
    "isNaN isFinite decodeURI decodeURIComponent encodeURI encodeURIComponent escape " +
    "unescape Infinity NaN undefined Number Boolean String Math Reflect Symbol " +
    "globalThis BigInt Date RegExp JSON Proxy Map Set WeakMap WeakSet ArrayBuffer " +
    "Uint8ClampedArray Int8Array Uint8Array Int16Array Uint16Array Int32Array " +
    "Uint32Array BigInt64Array BigUint64Array Float16Array Float32Array Float64Array " +
    "DataView Promise DisposableStack AsyncDisposableStack btoa atob";

  const { ask } = globalThis;  /* a host that can wait for results has put it there */
  const indirectEval = eval;
  const NativeDate = Date, NativeError = Error, NativeTypeError = TypeError, NativeString = String;
  const NativeProxy = Proxy;
  const ObjectPrototype = Object.prototype, SyntaxErrorPrototype = SyntaxError.prototype;
  const { defineProperty, freeze, getPrototypeOf, keys, setPrototypeOf } = Object;
  const { apply, construct } = Reflect;
  const { isArray } = Array;
  const { imul } = Math;
  const parseJson = JSON.parse, stringify = JSON.stringify;
  const { captureStackTrace } = Error;
  const nativeBind = Function.prototype.bind, nativeCall = Function.prototype.call;
  const uncurry = (method) => apply(nativeBind, nativeCall, [method]);
  const sort = uncurry(Array.prototype.sort);
  const wellFormed = uncurry(String.prototype.toWellFormed);
  const startsWith = uncurry(String.prototype.startsWith);
  const slice = uncurry(String.prototype.slice);
  const match = uncurry(RegExp.prototype.exec);
  const hasPrototype = uncurry(Object.prototype.isPrototypeOf);
  const dateValue = uncurry(NativeDate.prototype.valueOf);
  const isoText = uncurry(NativeDate.prototype.toISOString);
  const PromisePrototype = Promise.prototype;
  const FUNCTION_KINDS = [
    function () {}, function* () {}, async function () {}, async function* () {},
  ].map(getPrototypeOf);

  /* ---- state of this one execution ---- */
  let calls = [];              /* recorded calls, flat: tool, input, text, failed */
  let at = 0, end = 0;         /* where the next one is in `calls`, and where they end */
  let pages = null, last;      /* more of them: a list */
  let next = 0;                /* number of the next tool call */
  let phase = EVALUATING;
  let halt;                    /* an error no program can catch */
  let halted;                  /* why the program was abandoned: a report */
  let ended;                   /* how it ended by itself: a report, or undefined */
  let thrown = false, stage = "evaluating", error;
  let lines;                   /* of the program */
  let wholePaths;              /* errors about arguments say more than the last name */

  /* The engine marks the error of an interrupt, the object itself, as uncatchable: `catch` and
   * `finally` are skipped for it. MINT runs with a time limit of zero, so that the engine makes
   * one, and this hook is the only place where it can be seen. */
  Error.prepareStackTrace = (error) => {
    if (halt === undefined) halt = error;
    return "";
  };

  function mint() {
    for (;;);
  }

  function sealHalt() {
    NativeError.prepareStackTrace = undefined;
    delete NativeError.prepareStackTrace;
    if (halt === undefined) halt = new NativeError("halted");
    /* The wrapper turns an error that leaves the context into text outside every limit: program
     * code must not run there. Only InternalErrors of the engine leave. */
    const text = function () { return "InternalError: " + this.message; };
    for (const target of [halt, InternalError.prototype]) {
      defineProperty(target, Symbol.toPrimitive, { value: text });
      defineProperty(target, "stack", { value: "" });
    }
  }

  /* ---- determinism ---- */

  function define(target, name, value) {
    defineProperty(target, name, {
      __proto__: null, value, writable: true, configurable: true, enumerable: false,
    });
  }

  function seedRandom(seed) {
    let state = seed | 0;
    const draw = () => (state = (imul(state, 1664525) + 1013904223) | 0) >>> 0;
    const random = () => ((draw() >>> 5) * 67108864 + (draw() >>> 6)) / 2 ** 53;
    define(Math, "random", random);
  }

  /* The clock is compiled when the program first looks at Date: few do, and it is a quarter of
   * the time that a context takes to get ready. */
  function fixClock(source, started) {
    const load = () => {
      const clock = indirectEval(source)({
        __proto__: null, NativeDate, NativeString, apply, construct, dateValue, define,
        defineProperty, isDate, match, slice, uncurry,
      }, started);
      define(globalThis, "Date", clock);
      return clock;
    };
    defineProperty(globalThis, "Date", {
      __proto__: null, configurable: true, enumerable: false, get: load,
      set: (value) => define(globalThis, "Date", value),
    });
  }

  function closeDoors() {
    const kept = { __proto__: null }, names = Object.getOwnPropertyNames(globalThis);
    for (const name of KEPT_GLOBALS.split(" ")) kept[name] = true;
    for (const name of names) if (kept[name] !== true) delete globalThis[name];
    const blocked = function Function() {
      throw new NativeTypeError("code cannot be made from strings here");
    };
    for (const kind of FUNCTION_KINDS) {
      defineProperty(kind, "constructor", { value: blocked, writable: false, configurable: false });
    }
    setPrototypeOf(blocked, FUNCTION_KINDS[0]);
    freeze(blocked);
  }

  /* ---- arguments of a tool call as canonical JSON ---- */

  // include arguments.js

  /* ---- replay ---- */

  function parsedOr(text, fallback) {
    try {
      return parseJson(text);
    } catch (problem) {
      if (hasPrototype(SyntaxErrorPrototype, problem)) return fallback;
      throw problem;
    }
  }

  const RECORDED = { __proto__: null, name: "", up: undefined };

  /* Below depth 0 no `op` is merged in, and what was recorded is never too deep. */
  function sameJson(recorded, input, site) {
    return recorded === input || encode(parsedOr(recorded), site, -1e9, RECORDED) === input;
  }

  function feed(given) {
    const page = { __proto__: null, calls: given, next: null };
    if (pages === null) pages = page;
    else last.next = page;
    last = page;
  }

  function turnPage() {
    if (pages === null) return false;
    calls = pages.calls;
    pages = pages.next;
    at = 0;
    end = calls.length;
    return true;
  }

  function call(site, argument) {
    if (halted !== undefined) throw halt;
    if (phase !== RUNNING) {
      const misplaced = new NativeError(site.label + MISPLACED);
      captureStackTrace(misplaced, site.binding);
      throw misplaced;
    }
    const input = encodeArgument(argument, site);
    if (halted !== undefined) throw halt;  /* by a getter of the argument */
    let text, failed;
    if (at < end || turnPage()) {
      if (calls[at] !== site.tool || !sameJson(calls[at + 1], input, site)) {
        halted = ["diverged", next, calls[at], calls[at + 1], site.tool, input];
        throw halt;
      }
      text = calls[at + 2];
      failed = calls[at + 3];
      at += 4;
    } else {
      const waiting = ["suspended", next, site.tool, input];
      if (ask === undefined) {
        halted = waiting;
        throw halt;
      }
      try {
        const answer = ask(jsonText(waiting));
        failed = slice(answer, 0, 1) === FAILED;
        text = slice(answer, 1);
      } catch (_) {  /* no stack or no memory is left: this host cannot go on, another may */
        halted = ["undecided"];
        throw halt;
      }
    }
    next++;
    if (failed) {
      const failure = new NativeError(text);
      captureStackTrace(failure, site.binding);
      throw failure;
    }
    if (text === "") return undefined;
    return site.parsed ? parsedOr(text, text) : text;
  }

  /* ---- bindings ---- */

  function bindMethod(tool, method, isOp, parsed) {
    const op = isOp ? '"op":' + stringify(wellFormed(method)) : undefined;
    const site = {
      __proto__: null, tool, op, parsed,
      label: method === tool ? tool : tool + "." + method,
      empty: op === undefined ? "{}" : "{" + op + "}",
      names: UNKNOWN, fields: undefined,
      binding: { [method](argument) { return call(site, argument); } }[method],
    };
    return site.binding;
  }

  function bindOps(tool) {
    const methods = { __proto__: null };
    return new NativeProxy({}, {
      __proto__: null,
      get(target, name) {
        const known = methods[name];
        if (known !== undefined) return known;
        if (typeof name === "symbol" || PLAIN_PROPERTIES[name] === 1) return target[name];
        return (methods[name] = bindMethod(tool, name, true, true));
      },
      set: () => true,
      deleteProperty: () => true,
      defineProperty: () => true,
      setPrototypeOf: () => true,
      preventExtensions: () => false,
    });
  }

  function bindTool(tool) {
    if (OP_TOOLS[tool]) return bindOps(tool);
    if (tool === "Agent") return freeze({ spawn: bindMethod(tool, "spawn", false, true) });
    return bindMethod(tool, tool, false, startsWith(tool, "mcp__"));
  }

  /* ---- one execution ---- */

  function finalText(value) {
    if (value === undefined || value === null) return null;
    let text;
    if (typeof value !== "object") {
      text = typeof value === "function" ? undefined : NativeString(value);
    } else if (hasPrototype(PromisePrototype, value)) {
      throw new NativeTypeError(PROMISED);
    } else {
      const chosen = value.final_text;
      text = chosen !== undefined && chosen !== null ? NativeString(chosen) : stringify(value);
    }
    return text === undefined || text === "" ? null : wellFormed(text);
  }

  function execute(source, sourceLines, inputText, toolsText, clockSource, seed, started, paths) {
    lines = sourceLines;
    wholePaths = paths === 1;
    const tools = parseJson(toolsText);
    seedRandom(seed);
    fixClock(clockSource, started);
    for (let i = 0; i < tools.length; i++) define(globalThis, tools[i], bindTool(tools[i]));
    const input = parseJson(inputText);
    try {
      const run = indirectEval(source);
      if (run === undefined) {
        ended = ["undefined"];
        return;
      }
      const kind = getPrototypeOf(run);
      if (kind === FUNCTION_KINDS[1] || kind === FUNCTION_KINDS[2] || kind === FUNCTION_KINDS[3]) {
        ended = ["asynchronous"];
        return;
      }
      phase = RUNNING;
      stage = "running";
      ended = ["finished", finalText(apply(run, undefined, [input]))];
    } catch (problem) {
      thrown = true;
      error = problem;
    }
  }

  function describe() {
    if (error === null) return "null (thrown, or out of memory)";
    let text = NativeString(error);
    if (text === "[object Object]") text = NativeString(stringify(error));
    const stack = typeof error === "object" ? error.stack : undefined;
    return wellFormed(text) + (typeof stack === "string" ? position(stack) : "");
  }

  /* Ours are the lines after the program's: the host puts as many empty ones before this file. */
  function position(stack) {
    const FRAME = /<input>:(\d+):(\d+)/g;
    for (let frame; (frame = match(FRAME, stack)) !== null; ) {
      if (+frame[1] <= lines) return " (index.js:" + frame[1] + ":" + frame[2] + ")";
    }
    return "";
  }

  function describeThrown() {
    try {
      return [stage, hasPrototype(SyntaxErrorPrototype, error), describe()];
    } catch (_) {
      return [stage, false, "an exception that cannot be converted to text"];
    }
  }

  /* One JSON text, because the wrapper cannot read strings with NUL, nor ropes: `slice` makes it
   * one piece. Part by part, because the engine makes an array's text through Array.prototype. */
  function jsonText(parts) {
    let text = "[";
    for (let i = 0; i < parts.length; i++) text += (i === 0 ? "" : ",") + stringify(parts[i]);
    return slice(text + "]", 0);
  }

  function report() {
    const running = phase === RUNNING;
    phase = OVER;
    let parts = halted;
    if (parts === undefined && (thrown || ended !== undefined)) {
      if (running && (at < end || turnPage())) parts = ["short", next, calls[at], calls[at + 1]];
      else parts = thrown ? describeThrown() : ended;
    }
    return jsonText(parts === undefined ? ["undecided"] : parts);
  }

  function seal() {
    sealHalt();
    closeDoors();
  }

  return function host(command, ...given) {
    switch (command) {
      case MINT: return mint();
      case SEAL: return seal();
      case FEED: return feed(given);
      case RUN: return apply(execute, undefined, given);
      case REPORT: return report();
    }
  };
}()
