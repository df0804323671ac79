/** Numbers as text: three digits that count, with units; IEC for bytes, SI for times. */

export const DASH = "–";

type Maybe = number | null | undefined;

const known = (value: Maybe): value is number => typeof value === "number" && Number.isFinite(value);

/** Three digits that count. */
function three(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || value === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: Maybe): string {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1e10) return `${three(value / 1e9)} G`;
  if (size >= 1e7) return `${three(value / 1e6)} M`;
  return grouped.format(value);
}

/** A number that need not be whole. */
export function decimal(value: Maybe): string {
  if (!known(value)) return DASH;
  return Math.abs(value) >= 1000 || Number.isInteger(value) ? count(value) : three(value);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: Maybe): string {
  if (!known(value)) return DASH;
  let unit = 0;
  let left = value;
  while (Math.abs(left) >= 1000 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? left.toFixed(0) : three(left)} ${UNITS[unit]}`;
}

export function perSecond(value: Maybe): string {
  return known(value) ? `${bytes(value)}/s` : DASH;
}

export function seconds(value: Maybe): string {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 0.9995e-6) return `${three(value * 1e9)} ns`;
  if (size < 0.9995e-3) return `${three(value * 1e6)} µs`;
  if (size < 0.9995) return `${three(value * 1e3)} ms`;
  if (size < 119.5) return `${three(value)} s`;
  const whole = Math.round(value);
  if (size < 7170) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(value / 60);
  if (size < 172_000) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

export function nanoseconds(value: Maybe): string {
  return known(value) ? seconds(value / 1e9) : DASH;
}

export function percent(share: Maybe): string {
  if (!known(share)) return DASH;
  const value = share * 100;
  return `${value !== 0 && Math.abs(value) < 9.95 ? value.toFixed(1) : value.toFixed(0)} %`;
}

const wall = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** The time of day, with the day if that is not today. */
export function clock(unix: Maybe): string {
  if (!known(unix)) return DASH;
  const date = new Date(unix * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? wall.format(date) : `${day.format(date)} ${wall.format(date)}`;
}

/** The time of day with milliseconds. */
export function instant(unix: Maybe): string {
  if (!known(unix)) return DASH;
  return `${clock(unix)}.${String(Math.floor((unix % 1) * 1000)).padStart(3, "0")}`;
}

/** The time of day of a moment of the scheduler's. */
export function moment(ns: Maybe, began: Maybe): string {
  if (!known(ns)) return DASH;
  return known(began) ? clock(began + ns / 1e9) : `+${nanoseconds(ns)}`;
}

/** How far into the run a moment is, as exactly as `step` (ns) asks for. */
export function offset(ns: number, step: number): string {
  const value = ns / 1e9;
  if (step >= 1e9 && value >= 120) {
    const whole = Math.round(value);
    const h = Math.floor(whole / 3600);
    const m = Math.floor(whole / 60) % 60;
    const s = String(whole % 60).padStart(2, "0");
    return h > 0 ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
  }
  const digits = Math.max(0, Math.min(9, Math.ceil(9 - Math.log10(step))));
  return `${value.toFixed(digits)} s`;
}

/** Characters that show nothing, or turn the direction of those around them, made visible. */
function seen(text: string): string {
  return text.replace(/[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (letter) => {
    const code = letter.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

/** The beginning and the end of a long text, in one line. */
export function shorten(text: string | undefined, most: number): string {
  if (text === undefined || text === "") return DASH;
  if (text.length <= most) return seen(text);
  const tail = Math.min(8, most >> 2);
  return `${seen(text.slice(0, most - tail - 1))}…${seen(text.slice(-tail))}`;
}

/** A text of several lines, not more than `most` characters of it. */
export function lines(text: string | undefined, most: number): string {
  if (text === undefined || text === "") return DASH;
  const all = text.length <= most ? text : `${text.slice(0, most)}\n…`;
  return all.split("\n").map((line) => line.split("\t").map(seen).join("\t")).join("\n");
}

export function text(value: unknown): string {
  if (value === undefined || value === null || value === "") return DASH;
  if (typeof value === "number") return decimal(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function sum(values: Iterable<Maybe>): number | undefined {
  let all: number | undefined;
  for (const value of values) if (known(value)) all = (all ?? 0) + value;
  return all;
}
