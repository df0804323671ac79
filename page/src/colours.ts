/**
 * Colours of groups and states. No state is told by its hue alone: each has a pattern or a label, too.
 *
 * The hues of groups are those of Okabe and Ito (2008), which all kinds of colour blindness tell apart, without vermilion:
 * that means failed. With three shades and four patterns there are 84 looks.
 */

import { effect, signal } from "@preact/signals";

export function rgb(hex: string): [number, number, number] {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

const HUES = ["#E69F00", "#56B4E9", "#009E73", "#D8C72C", "#0072B2", "#CC79A7", "#8C7B66"];
/** Part of white or black in a shade. */
const SHADES: [number, number][] = [
  [0, 0],
  [0.42, 255],
  [0.3, 0],
];
export const COLOURS = SHADES.flatMap(([part, to]) =>
  HUES.map((hue) => {
    const mixed = rgb(hue).map((value) => Math.round(value * (1 - part) + to * part));
    return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }),
);
export const PATTERNS = 4;
/** What has no name. */
export const NEUTRAL = "#8A9097";

/** Of spans that are no tasks, by their kind. */
export const KINDS = [
  { name: "task", colour: "" },
  { name: "reading inputs", colour: "#6B7280" },
  { name: "fetch", colour: "#D55E00" },
  { name: "spill", colour: "#7A1F5C" },
  { name: "shuffle", colour: "#3F51B5" },
  { name: "cast", colour: "#A0651C" },
  // In the colour of its group.
  { name: "running", colour: "" },
] as const;

export function kindName(kind: number): string {
  return kind === 15 ? "several" : (KINDS[kind]?.name ?? `kind ${kind}`);
}

/** The part of a group's name that stays from run to run, and the digest of Dask's. */
export function parts(name: string): [string, string] {
  const found = /^(.*?)-((?:[0-9a-f]{8,}|[0-9a-f-]{36}))$/.exec(name);
  return found ? [found[1]!, found[2]!] : [name, ""];
}

export interface Look {
  /** Of `COLOURS`. */
  colour: number;
  pattern: number;
}

/** By the part of a name that stays. */
const looks = new Map<string, Look>();
const taken = new Set<string>();
const ALL = COLOURS.length * PATTERNS;

function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (const letter of text.slice(0, 1000)) {
    hash = Math.imul(hash ^ (letter.codePointAt(0) ?? 0), 0x01000193) >>> 0;
  }
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d) >>> 0;
  return (hash ^ (hash >>> 12)) >>> 0;
}

/**
 * Gives groups looks, in the order in which the scheduler met them: a program has the same in each run and browser. The
 * hash of a name says which hue it has; where that is taken, the next one, and then other shades and patterns.
 */
export function claim(names: Iterable<string>): void {
  for (const name of names) {
    const [own] = parts(name);
    if (taken.size === ALL) return;
    if (looks.has(own)) continue;
    const hash = hashOf(own);
    for (let n = 0; n < ALL; n += 1) {
      const round = Math.floor(n / HUES.length);
      const shade = round % SHADES.length;
      const found = { colour: shade * HUES.length + ((hash + n) % HUES.length), pattern: Math.floor(round / SHADES.length) };
      const id = `${found.colour} ${found.pattern}`;
      if (taken.has(id)) continue;
      taken.add(id);
      looks.set(own, found);
      break;
    }
  }
}

const others = new Map<string, Look>();

/** What a group looks like. */
export function look(name: string): Look {
  const [own] = parts(name);
  let found = looks.get(own) ?? others.get(own);
  if (found === undefined) {
    const hash = hashOf(own);
    found = { colour: hash % COLOURS.length, pattern: (hash >>> 10) % PATTERNS };
    if (others.size > 20_000) others.clear();
    others.set(own, found);
  }
  return found;
}

export type Theme = "system" | "light" | "dark";

const STORED = "treadle-theme";

function stored(): Theme {
  try {
    const told = localStorage.getItem(STORED);
    if (told === "light" || told === "dark") return told;
  } catch {
    // A frame without storage.
  }
  return "system";
}

export const theme = signal<Theme>(stored());
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(prefersDark.matches);
prefersDark.addEventListener("change", (event) => {
  systemDark.value = event.matches;
});

/** Whether the page is dark now. What is drawn on a canvas reads it. */
export const dark = signal(false);

effect(() => {
  dark.value = theme.value === "dark" || (theme.value === "system" && systemDark.value);
  document.documentElement.dataset["theme"] = dark.value ? "dark" : "light";
});

export function turnTheme(): void {
  const next: Theme = dark.peek() ? "light" : "dark";
  theme.value = next === (systemDark.peek() ? "dark" : "light") ? "system" : next;
  try {
    if (theme.value === "system") localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, theme.value);
  } catch {
    // A frame without storage.
  }
}

/** A colour of the style sheet, for a canvas. */
export function variable(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
