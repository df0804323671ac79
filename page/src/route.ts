/** The view and what it shows stand in the part of the address after `#`, so that a link can be shared. */

import { signal } from "@preact/signals";

export interface Route {
  view: string;
  with: URLSearchParams;
}

/** One view alone, for frames: its path names it, or `bare` is among its settings. */
const alone = /\/individual-([a-z-]+)\/?$/.exec(location.pathname)?.[1];
export const bare = alone !== undefined || /[?&]bare\b/.test(location.hash);

function read(): Route {
  const [view, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: view || alone || "overview", with: new URLSearchParams(query ?? "") };
}

export const route = signal<Route>(read());

addEventListener("hashchange", () => {
  route.value = read();
});

type Settings = Record<string, string | number | undefined | null>;

export function href(view: string, settings: Settings = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return `#/${view}${text && `?${text}`}`;
}

export function go(view: string, settings: Settings = {}): void {
  location.hash = href(view, settings);
}

/** Changes settings of the view that is open, without a step in the browser's history. */
export function set(settings: Settings): void {
  const now = route.peek();
  const all: Settings = Object.fromEntries(now.with);
  const next = href(now.view, { ...all, ...settings });
  if (next === location.hash) return;
  history.replaceState(null, "", next);
  route.value = read();
}
