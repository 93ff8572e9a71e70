/* Date for a program: starts at the run's start, each read of the clock advances 1 ms, and local
 * time is UTC, because a run may continue on a machine in another zone. Compiled while program
 * code is already running, hence it uses nothing but what it is given.
 */
0, function (given, started) {
  "use strict";

  const { NativeDate, NativeString, apply, construct, uncurry, define, match, slice } = given;
  const { dateValue, isDate } = given;
  const proto = NativeDate.prototype;
  const nativeParse = NativeDate.parse, UTC = NativeDate.UTC;
  const utcText = uncurry(proto.toUTCString), localOffset = uncurry(proto.getTimezoneOffset);
  const ZONED = /(?:Z|UTC|GMT|[ECMP][SD]T|[+-]\d{1,2}:?\d{2})\s*(?:\([^)]*\))?\s*$/i;
  const DATE_ONLY = /^\s*[+-]?\d{4,6}(?:-\d\d(?:-\d\d)?)?\s*$/;
  const PARTS = ["Date", "Day", "FullYear", "Hours", "Milliseconds", "Minutes", "Month", "Seconds"];
  const utc = { __proto__: null }, local = { __proto__: null };
  let now = started;
  const tick = () => now++;

  /* A text without a zone is local time for the engine; its fields are UTC here. */
  function parse(value) {
    const text = NativeString(value);
    const time = nativeParse(text);
    if (time !== time) return time;
    const host = construct(NativeDate, [time]);
    if (localOffset(host) === 0) return time;
    if (match(ZONED, text) !== null || match(DATE_ONLY, text) !== null) return time;
    return UTC(local.FullYear(host), local.Month(host), local.Date(host), local.Hours(host),
               local.Minutes(host), local.Seconds(host), local.Milliseconds(host));
  }

  function timeOf(value) {
    if (typeof value === "string") return parse(value);
    if (typeof value !== "object" || value === null) return value;
    if (isDate(value)) return dateValue(value);
    const number = +value;
    return number === number ? number : parse(value);
  }

  function FixedDate(year, month, date, hours, minutes, seconds, ms) {
    if (new.target === undefined) return toText(construct(NativeDate, [tick()]));
    const count = arguments.length;
    let time;
    if (count === 0) time = tick();
    else if (count === 1) time = timeOf(year);
    else time = apply(UTC, undefined, arguments);
    return construct(NativeDate, [time], new.target);
  }

  const pad = (number) => (number < 10 ? "0" : "") + number;
  const valid = (form) => (date) => {
    const text = utcText(date);
    return text === "Invalid Date" ? text : form(date, text);
  };
  const day = (date, text) =>
    slice(text, 0, 3) + slice(text, 7, 11) + slice(text, 4, 7) + slice(text, 11, -13);
  const time = (date, text) => slice(text, -12) + "+0000 (UTC)";
  const usDay = (date) => utc.Month(date) + 1 + "/" + utc.Date(date) + "/" + utc.FullYear(date);
  const usTime = (date) => {
    const hour = utc.Hours(date);
    const minutes = pad(utc.Minutes(date)) + ":" + pad(utc.Seconds(date));
    return pad(hour % 12 || 12) + ":" + minutes + (hour < 12 ? " AM" : " PM");
  };
  const toText = valid((date, text) => day(date, text) + " " + time(date, text));
  const METHODS = [
    ["toString", toText],
    ["toDateString", valid(day)],
    ["toTimeString", valid(time)],
    ["toLocaleString", valid((date) => usDay(date) + ", " + usTime(date))],
    ["toLocaleDateString", valid(usDay)],
    ["toLocaleTimeString", valid(usTime)],
    ["getTimezoneOffset", (date) => (dateValue(date) === dateValue(date) ? 0 : NaN)],
    ["getYear", (date) => utc.FullYear(date) - 1900],
  ];

  for (let i = 0; i < PARTS.length; i++) {
    const part = PARTS[i], read = proto["getUTC" + part];
    utc[part] = uncurry(read);
    local[part] = uncurry(proto["get" + part]);
    define(proto, "get" + part, read);
    if (part !== "Day") define(proto, "set" + part, proto["setUTC" + part]);
  }
  for (let i = 0; i < METHODS.length; i++) {
    const name = METHODS[i][0], form = METHODS[i][1];
    define(proto, name, { [name]() { return form(this); } }[name]);
  }
  delete proto.setYear;
  define(FixedDate, "now", { now: () => tick() }.now);
  define(FixedDate, "parse", { parse: (text) => parse(text) }.parse);
  define(FixedDate, "UTC", UTC);
  define(FixedDate, "name", "Date");
  given.defineProperty(FixedDate, "prototype", { __proto__: null, value: proto, writable: false });
  define(proto, "constructor", FixedDate);
  return FixedDate;
}
