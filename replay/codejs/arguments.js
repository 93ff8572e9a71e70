/* The argument of a tool call as canonical JSON: keys ascending, `op` merged in. Part of the
 * prelude's function (prelude.js takes this text in), so the same care is due: the values are the
 * program's, nothing but their own properties may run program code.
 */
const MAX_DEPTH = 100;
const TOO_DEEP = "encoding arguments: circular, or nested deeper than " + MAX_DEPTH + " levels";
const MAX_KEPT_FIELDS = 16, MAX_KEPT_LENGTH = 256;
const UNKNOWN = { __proto__: null, length: -1 };  /* no value of a program is this one */

function refuse(site, problem) {
  const error = new NativeTypeError(site.label + ": " + problem);
  captureStackTrace(error, site.binding);
  throw error;
}

function refuseValue(site, what, place) {
  refuse(site, "encoding arguments: " + what + " at " + pathOf(place) + " is not a JSON value");
}

/* A place is a name (or an index) and the place of what it is in; a field is one with none. */
function pathOf(place) {
  if (!wholePaths || place.up === undefined) return stringify(place.name);
  return pathOf(place.up) + "[" + stringify(place.name) + "]";
}

function isDate(value) {
  const proto = getPrototypeOf(value);
  if (proto === ObjectPrototype || proto === null) return false;
  try {
    dateValue(value);
    return true;
  } catch (_) {
    return false;
  }
}

const quotedKeys = { __proto__: null };
let quotedCount = 0;

function quoteKey(name) {
  const known = quotedKeys[name];
  if (known !== undefined) return known;
  const quoted = stringify(wellFormed(name));
  if (quotedCount++ < 1000) quotedKeys[name] = quoted;
  return quoted;
}

function encode(value, site, depth, place) {
  switch (typeof value) {
    case "string": return stringify(wellFormed(value));
    case "number":
      if (value - value !== 0) refuseValue(site, "" + value, place);
      return value === 0 ? "0" : "" + value;
    case "boolean": return value ? "true" : "false";
    case "undefined": return "null";
    case "object":
      if (value === null) return "null";
      if (depth === MAX_DEPTH) refuse(site, TOO_DEEP);
      if (isArray(value)) return encodeArray(value, site, depth, place);
      if (isDate(value)) return encodeDate(value, site, place);
      return encodeObject(value, site, depth, place);
    default:
      return refuseValue(site, "a " + typeof value, place);
  }
}

function encodeDate(value, site, place) {
  const time = dateValue(value);
  if (!(time >= -62167219200000 && time < 253402300800000)) {
    refuseValue(site, "an invalid Date", place);
  }
  return stringify(isoText(value));
}

function encodeArray(array, site, depth, up) {
  const place = { __proto__: null, name: 0, up };
  let text = "[";
  for (let i = 0; i < array.length; i++) {
    place.name = i;
    text += (i === 0 ? "" : ",") + encode(array[i], site, depth + 1, place);
  }
  return text + "]";
}

function sorted(names) {
  for (let i = 1; i < names.length; i++) {
    if (names[i - 1] > names[i]) return sort(names);
  }
  return names;
}

function encodeObject(object, site, depth, up) {
  const place = { __proto__: null, name: "", up };
  const names = sorted(keys(object));
  let text = "{";
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    text += (i === 0 ? "" : ",") + quoteKey(name) + ":";
    place.name = name;
    text += encode(object[name], site, depth + 1, place);
  }
  return text + "}";
}

function encodeArgument(argument, site) {
  if (argument === undefined || argument === null) return site.empty;
  if (typeof argument !== "object" || isArray(argument) || isDate(argument)) {
    refuse(site, "argument must be an object");
  }
  const names = keys(argument);
  let field = site.fields, text = "";
  if (names.length > MAX_KEPT_FIELDS) {
    field = fieldsOf(sorted(names), site.op);
  } else if (!sameNames(names, site.names)) {
    field = site.fields = fieldsOf(names, site.op);
    site.names = names;
  }
  for (; field.name !== undefined; field = field.next) {
    const value = argument[field.name];
    text += value === field.value ? field.text : encodeField(value, field, site);
  }
  return text + field.head;
}

/* Calls of one binding mostly repeat the names of the call before and some of its values. So
 * both are kept with their texts: a list in the order of the text, where `head` is what stands
 * before a value; the last field has no name and ends the object. A getter may call the binding
 * again while its list is in use: a list never loses a field, and a value changes together with
 * its text. */
function fieldsOf(names, op) {
  const end = { __proto__: null, name: undefined, head: "" };
  const list = { __proto__: null, name: undefined, next: end };
  let latest = list;
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    if (op !== undefined && name === "op") continue;
    let before = latest.name < name ? latest : list;
    while (before.next.name < name) before = before.next;
    const next = before.next;
    latest = before.next = { __proto__: null, name, head: "", value: UNKNOWN, text: "", next };
  }
  let head = "{", pending = op !== undefined;
  for (let field = list.next; field !== end; field = field.next) {
    if (pending && field.name > "op") {
      head += op + ",";
      pending = false;
    }
    field.head = head + quoteKey(field.name) + ":";
    head = ",";
  }
  if (head === "," && !pending) head = "";
  end.head = head + (pending ? op : "") + "}";
  return list.next;
}

function sameNames(names, known) {
  if (names.length !== known.length) return false;
  for (let i = 0; i < names.length; i++) {
    if (names[i] !== known[i]) return false;
  }
  return true;
}

function encodeField(value, field, site) {
  const text = field.head + encode(value, site, 1, field);
  const kind = typeof value;
  if (kind === "number" || (kind === "string" && value.length <= MAX_KEPT_LENGTH)) {
    field.value = value;
    field.text = text;
  }
  return text;
}
