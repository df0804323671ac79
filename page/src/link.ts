/** Asks the server, again and again while somebody looks, and knows whether it still answers. */

import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { claim } from "./colours";
import { answer as answerHeld, isReport } from "./held";
import type { Overview } from "./types";

const EVERY = 500;
/** From a change of the question to its answer's: wheels turn often. */
const SOON = 60;
const PATIENCE = 15_000;
const MOST_BUSY = 8_000;
const MOST_LOST = 3_000;
const MISSING = 10_000;

const token = new URLSearchParams(location.search).get("token");

/** How the scheduler was at the last question. */
export type Health =
  | { is: "opening" }
  | { is: "well" }
  | { is: "busy"; since: number }
  | { is: "lost"; since: number; why: string }
  | { is: "refused"; since: number };

export const health = signal<Health>({ is: "opening" });
export const overview = signal<Overview | undefined>(undefined);
/** When a scheduler answered that is not the one before, in seconds since 1970. */
export const replaced = signal<number | undefined>(undefined);
/** When the last overview came, in milliseconds of `performance.now()`. */
export let heard = 0;
/** Changes with the scheduler: what was kept of the one before is of no use then. */
export const life = signal(0);

export class Refused extends Error {
  constructor(
    readonly status: number,
    text: string,
    readonly after: number,
  ) {
    super(text);
  }
}

/** One question. Throws `Refused` for an answer that is none, and what `fetch` throws where there is no answer. */
export async function ask(path: string, stop?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = token === null ? {} : { Authorization: `Bearer ${token}` };
  const limit = AbortSignal.timeout(PATIENCE);
  const signal = stop === undefined ? limit : AbortSignal.any([limit, stop]);
  if (isReport) {
    const own = await answerHeld(path);
    if (own) return own;
    throw new Refused(404, "this report does not have it", 0);
  }
  const answer = await fetch(path, { headers, signal, cache: "no-store" });
  if (answer.ok) return answer;
  let why = (await answer.text()).slice(0, 500);
  try {
    why = String((JSON.parse(why) as { error?: unknown }).error ?? why);
  } catch {
    // It was text.
  }
  const after = Number(answer.headers.get("Retry-After"));
  throw new Refused(answer.status, why, Number.isFinite(after) ? after * 1000 : 0);
}

export async function askJson<T>(path: string, stop?: AbortSignal): Promise<T> {
  return (await ask(path, stop)).json() as Promise<T>;
}

export interface Answer<T> {
  value?: T;
  /** The server has no such thing. */
  missing?: boolean;
  error?: string;
}

/** Asks until it is stopped, not while the page is hidden, and less often a server that is slow. */
export class Poll {
  private readonly stopped = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asking = false;
  private again = false;
  private failures = 0;

  constructor(
    private readonly every: number | (() => number),
    private readonly question: (stop: AbortSignal) => Promise<void>,
    private readonly failed: (error: unknown) => void,
  ) {
    document.addEventListener("visibilitychange", this.shown, { signal: this.stopped.signal });
    void this.next();
  }

  private readonly shown = () => {
    if (document.hidden) clearTimeout(this.timer);
    else void this.next();
  };

  private async next(): Promise<void> {
    clearTimeout(this.timer);
    if (this.asking || document.hidden || this.stopped.signal.aborted) return;
    this.asking = true;
    this.again = false;
    const began = performance.now();
    const every = typeof this.every === "number" ? this.every : this.every();
    let wait = every;
    try {
      await this.question(this.stopped.signal);
      this.failures = 0;
      // A slow server is asked for a third of the time at most.
      wait = Math.max(every, 2 * (performance.now() - began));
      if (this.again) wait = Math.min(wait, SOON);
    } catch (error) {
      if (!this.stopped.signal.aborted) {
        this.failures += 1;
        const again = 250 * 2 ** Math.min(this.failures, 6) * (0.8 + 0.4 * Math.random());
        if (error instanceof Refused) {
          wait = error.status === 503 ? Math.max(error.after, Math.min(again, MOST_BUSY)) : error.status === 404 ? MISSING : MOST_LOST;
        } else {
          wait = Math.min(again, MOST_LOST);
        }
        this.failed(error);
      }
    } finally {
      this.asking = false;
    }
    if (!document.hidden && !this.stopped.signal.aborted) {
      this.timer = setTimeout(() => void this.next(), wait);
    }
  }

  /** The question has changed: asks soon. */
  poke(): void {
    if (this.asking) this.again = true;
    else if (this.failures === 0 && !document.hidden && !this.stopped.signal.aborted) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => void this.next(), SOON);
    }
  }

  stop(): void {
    clearTimeout(this.timer);
    this.stopped.abort();
  }
}

function why(error: unknown): string {
  if (error instanceof Refused) return `${error.status} ${error.message}`.trim();
  if (error instanceof DOMException && error.name === "TimeoutError") return `no answer in ${PATIENCE / 1000} s`;
  if (error instanceof SyntaxError) return "its answer is not whole";
  return "no connection";
}

/** A history does not change: it is asked for to see whether it is there. */
function pace(every: number): number {
  if (isReport) return 3_600_000;
  return overview.peek()?.live === false ? Math.max(every, 5000) : every;
}

/** Keeps `overview` and `health` up to date from now on. */
export function watch(): void {
  let name: string | undefined;
  new Poll(
    () => pace(EVERY),
    async (stop) => {
      const answer = await askJson<Overview>("sight/overview", stop);
      const now = `${answer.cluster?.id ?? ""} ${answer.began ?? ""}`;
      if (name !== undefined && name !== now) {
        replaced.value = Date.now() / 1000;
        life.value += 1;
      }
      name = now;
      heard = performance.now();
      claim([...(answer.groups ?? [])].sort((a, b) => a.id - b.id).map((group) => group.name));
      overview.value = answer;
      if (health.peek().is !== "well") health.value = { is: "well" };
    },
    (error) => {
      const before = health.peek();
      const since = "since" in before ? before.since : heard || performance.now();
      if (error instanceof Refused && error.status === 503) health.value = { is: "busy", since };
      else if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        health.value = { is: "refused", since };
      } else health.value = { is: "lost", since, why: why(error) };
    },
  );
}

/** Asks for a path again and again as long as the component is there. `null`: asks nothing. */
export function usePoll<T>(
  path: string | null,
  every = EVERY,
  decode: (answer: Response) => Promise<T> = (answer) => answer.json() as Promise<T>,
): Signal<Answer<T>> {
  const told = useMemo(() => signal<Answer<T>>({}), [path, life.value]);
  useEffect(() => {
    if (path === null) return undefined;
    const poll = new Poll(
      () => pace(every),
      async (stop) => {
        told.value = { value: await decode(await ask(path, stop)) };
      },
      (error) => {
        const { value } = told.peek();
        if (error instanceof Refused && error.status === 404) told.value = { missing: true };
        else told.value = { value, error: why(error) };
      },
    );
    return () => poll.stop();
  }, [path, every, life.value]);
  return told;
}
