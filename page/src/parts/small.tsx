/** Small parts that several views have. */

import type { ComponentChildren } from "preact";
import { COLOURS, look, parts } from "../colours";
import { count, DASH, percent, shorten } from "../format";
import { href } from "../route";
import type { Group, Worker } from "../types";

export function Swatch({ name }: { name: string }) {
  const { colour, pattern } = look(name);
  return <i class={`swatch p${pattern}`} style={{ backgroundColor: COLOURS[colour] }} aria-hidden="true" />;
}

/** A group's name: its digest is dimmed, and text that is too long is cut off. */
export function GroupName({ name, most = 60 }: { name: string | undefined; most?: number }) {
  if (name === undefined) return <>{DASH}</>;
  const [begin, digest] = parts(name);
  return (
    <span class="name" title={shorten(name, 400)}>
      <Swatch name={name} />
      <bdi>{shorten(begin, most)}</bdi>
      {digest && <span class="digest">{digest.slice(0, 6)}</span>}
    </span>
  );
}

export function TaskLink({ name, most = 80 }: { name: string | undefined; most?: number }) {
  if (name === undefined) return <>{DASH}</>;
  return (
    <a class="key" href={href("task", { key: name })} title={shorten(name, 400)}>
      <bdi>{shorten(name, most)}</bdi>
    </a>
  );
}

export function workerName(worker: Worker | undefined, id?: number | string): string {
  const name = worker?.name ?? worker?.address ?? id;
  return name === undefined ? DASH : shorten(String(name), 48);
}

/** The states of workers. */
export const SIGNS: Record<string, string> = { running: "●", paused: "‖", draining: "◐", gone: "✕" };

export const STATES = [
  ["failed", "failed"],
  ["memory", "done"],
  ["released", "done, released"],
  ["assigned", "at workers"],
  ["ready", "queued"],
  ["waiting", "waiting"],
] as const;

/**
 * How many tasks of a group are in a state. Who knows only how often they ran says so: of each run that
 * ended well there is a task that is done, and a task that failed has run no more than that.
 */
export function inState(group: Group, state: (typeof STATES)[number][0]): number {
  if (group.memory === undefined && group.released === undefined && group.runs !== undefined) {
    const total = group.total ?? group.runs;
    const ended = Math.max(0, Math.min(total, group.runs - (group.failed ?? 0)));
    const failed = Math.min(group.failed ?? 0, total - ended);
    if (state === "memory") return ended;
    if (state === "failed") return failed;
    if (state === "waiting") return Math.max(0, total - ended - failed);
  }
  if (state === "failed") return group.erred ?? 0;
  return group[state] ?? 0;
}

/** How many tasks of a group are in each state, as one bar. */
export function Progress({ group }: { group: Group }) {
  const total = group.total ?? 0;
  if (total === 0) return <span class="dim">{DASH}</span>;
  return (
    <span class="progress" role="img" aria-label={progressText(group)} title={progressText(group)}>
      {total > 0 &&
        STATES.map(([state]) => {
          const n = inState(group, state);
          return n > 0 && <i key={state} class={`state ${state}`} style={{ flexGrow: n / total }} />;
        })}
    </span>
  );
}

function progressText(group: Group): string {
  const told = STATES.filter(([state]) => inState(group, state) > 0).map(
    ([state, name]) => `${count(inState(group, state))} ${name}`,
  );
  return `${told.join(", ") || "no tasks"} of ${count(group.total)}`;
}

export function done(group: Group): number | undefined {
  if (group.memory === undefined && group.released === undefined && group.runs === undefined) return undefined;
  return inState(group, "memory") + inState(group, "released");
}

export function Legend({ states }: { states: readonly (readonly [string, string])[] }) {
  return (
    <span class="legend">
      {states.map(([state, name]) => (
        <span key={state}>
          <i class={`state ${state}`} />
          {name}
        </span>
      ))}
    </span>
  );
}

/** A bar with its share of a limit. */
export function Share({ share }: { share: number | undefined }) {
  if (share === undefined || !Number.isFinite(share)) return <span>{DASH}</span>;
  return (
    <span class="share">
      <i style={{ width: `${Math.min(100, Math.max(0, share * 100))}%` }} />
      <b>{percent(share)}</b>
    </span>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Fact({ name, children, bad }: { name: string; children: ComponentChildren; bad?: boolean }) {
  return (
    <div class={bad ? "fact bad" : "fact"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Panel({
  title,
  more,
  children,
  kind,
}: {
  title: ComponentChildren;
  more?: ComponentChildren;
  children: ComponentChildren;
  kind?: string;
}) {
  return (
    <section class={`panel ${kind ?? ""}`}>
      <header>
        <h2>{title}</h2>
        {more}
      </header>
      {children}
    </section>
  );
}

/** Keys that do something in a view, while nobody writes text. */
export function writing(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement | null;
  return (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    (target !== null && (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) || target.isContentEditable))
  );
}
