/** The task stream: what each thread did when, from the whole run to one task. */

import { useEffect, useRef, useState } from "preact/hooks";
import { dark, kindName, KINDS, NEUTRAL } from "../colours";
import { bytes, count, DASH, moment, nanoseconds, shorten } from "../format";
import { isReport } from "../held";
import { ask, askJson, life, overview, Poll, Refused } from "../link";
import { Empty, GroupName, TaskLink, workerName, writing } from "../parts/small";
import { href, route, set } from "../route";
import { decode, RUNNING, SEVERAL, WORDS, type Picture, type Rectangle } from "../stream/decode";
import { Stage, type Window } from "../stream/stage";
import type { Overview, Span } from "../types";

/** How much of the run is shown at first, while it goes on. */
const RECENT = 60e9;

/** From the first single span on; by group, what was before is drawn, too. */
function bounds(now: Overview, by: string): Window {
  const from = by === "group" && !isReport && (now.spans?.older ?? 0) > 0 ? 0 : (now.spans?.from ?? 0);
  const active = (now.tasks?.assigned ?? 0) > 0;
  const to = active ? now.now : (now.spans?.to ?? now.now);
  return { from, to: Math.max(to, from + 1e6) };
}

/** The groups whose tasks are in a picture: other spans may name others. */
function tasksOf(picture: Picture): string[] {
  const ids = new Set<number>();
  for (let n = 0; n < picture.size && ids.size < picture.groups.size; n += 1) {
    const kind = picture.words[n * WORDS + 4]! & 0xffff;
    if (kind === 0 || kind === SEVERAL || kind === RUNNING) ids.add(picture.words[n * WORDS + 1]!);
  }
  return [...ids].flatMap((id) => picture.groups.get(id) ?? []).slice(0, 200);
}

export function Stream() {
  const box = useRef<HTMLDivElement>(null);
  const stage = useRef<Stage | undefined>(undefined);
  const poll = useRef<Poll | undefined>(undefined);
  const picture = useRef<Picture | undefined>(undefined);
  const { with: settings } = route.value;
  const by = settings.get("by") === "group" ? "group" : "worker";
  const group = settings.get("group");
  const worker = settings.get("worker");
  const follows = !settings.has("from") && (overview.value?.live ?? false);
  const state = useRef({ by, group, worker, follows, length: RECENT });
  state.current = { ...state.current, by, group, worker, follows };
  const [told, setTold] = useState<{ count?: number; size: number; exact: boolean; error?: string; groups: string[] }>();
  const [missing, setMissing] = useState(false);
  const [chosen, setChosen] = useState<{ found: Rectangle; picture: Picture; span?: Span; error?: string }>();
  const now = overview.value;
  const there = now !== undefined;

  const moved = (window: Window) => {
    const end = stage.current!.bounds.to;
    const length = window.to - window.from;
    state.current.length = length;
    // Who zooms at the end while following goes on to follow.
    if (state.current.follows && Math.abs(window.to - end) < length * 0.02) {
      stage.current!.put({ from: end - length, to: end });
    } else {
      set({ from: Math.round(window.from), to: Math.round(window.to) });
    }
    poll.current?.poke();
  };

  const chose = (found: Rectangle | undefined, shown: Picture) => {
    if (found === undefined) {
      stage.current!.choose(undefined);
      setChosen(undefined);
      return;
    }
    const at = (found.from + found.to) / 2;
    stage.current!.choose({ lane: shown.lanes[found.lane], at });
    setChosen({ found, picture: shown });
    const lane = shown.lanes[found.lane];
    const query = new URLSearchParams({ at: String(Math.round(at)) });
    if (lane?.worker !== undefined) query.set("worker", String(lane.worker));
    if (lane?.lane !== undefined) query.set("lane", String(lane.lane));
    // A lane that is a group has no single span.
    if (shown.most > 0) return;
    query.set("within", String(Math.round((found.to - found.from) / 2 + 1)));
    askJson<Span>(`sight/span?${query}`).then(
      (span) => setChosen((before) => (before?.found === found ? { ...before, span } : before)),
      (error: unknown) =>
        setChosen((before) =>
          before?.found === found ? { ...before, error: error instanceof Refused ? error.message : "no answer" } : before,
        ),
    );
  };

  useEffect(() => {
    if (!there || missing) return undefined;
    const made = new Stage(box.current!, { moved, chosen: chose });
    stage.current = made;
    const first = overview.peek()!;
    made.bounds = bounds(first, state.current.by);
    const { from, to } = made.bounds;
    const asked = route.peek().with;
    made.put(
      asked.has("from")
        ? { from: Number(asked.get("from")) || 0, to: Number(asked.get("to")) || to }
        : first.live
          ? { from: Math.max(from, to - RECENT), to }
          : { from, to },
    );
    // While it goes on, there is more to come than what there is.
    state.current.length = first.live && !asked.has("from") ? RECENT : made.window.to - made.window.from;
    const asks = new Poll(
      () => {
        // What is over does not change.
        const over = made.window.to < made.bounds.to - 2e9 && (picture.current?.exact ?? false);
        if (isReport) return 3_600_000;
        return overview.peek()?.live === false || over ? 5000 : 500;
      },
      async (stop) => {
        const { from: begin, to: end } = made.window;
        const query = new URLSearchParams({
          from: String(Math.max(0, Math.round(begin))),
          to: String(Math.round(end)),
          width: String(made.pixels),
          by: state.current.by,
        });
        if (state.current.group) query.set("group", state.current.group);
        if (state.current.worker) query.set("worker", state.current.worker);
        const next = decode(await (await ask(`sight/spans?${query}`, stop)).arrayBuffer(), query.get("by") === "group");
        picture.current = next;
        made.show(next);
        setTold({
          count: next.count,
          size: next.size,
          exact: next.exact,
          groups: tasksOf(next),
        });
      },
      (error) => {
        if (error instanceof Refused && error.status === 404) setMissing(true);
        else if (error instanceof Refused || error instanceof SyntaxError) {
          setTold((before) => ({ size: 0, exact: false, groups: [], ...before, error: error.message }));
        }
      },
    );
    poll.current = asks;
    return () => {
      asks.stop();
      made.close();
      stage.current = undefined;
      poll.current = undefined;
    };
  }, [there, missing, life.value]);

  useEffect(() => poll.current?.poke(), [by, group, worker]);
  useEffect(() => stage.current?.redraw(), [dark.value]);

  // A link, or the end that is followed, moves the window.
  useEffect(() => {
    const made = stage.current;
    if (made === undefined || now === undefined) return;
    made.bounds = bounds(now, state.current.by);
    const { length } = state.current;
    if (follows) made.put({ from: made.bounds.to - Math.min(length, made.bounds.to - made.bounds.from), to: made.bounds.to });
    else made.redraw();
    if (follows) poll.current?.poke();
  }, [now, follows]);
  useEffect(() => {
    const made = stage.current;
    const [from, to] = [Number(settings.get("from")), Number(settings.get("to"))];
    if (made && settings.has("from") && to > from && Math.abs(made.window.from - from) + Math.abs(made.window.to - to) > 2) {
      made.put({ from, to });
      poll.current?.poke();
    }
  }, [settings]);

  const follow = () => {
    const made = stage.current;
    if (made === undefined) return;
    const length = made.window.to - made.window.from;
    state.current.length = length > (made.bounds.to - made.bounds.from) * 0.9 ? RECENT : length;
    set({ from: undefined, to: undefined });
  };
  const whole = () => {
    state.current.follows = false;
    stage.current?.whole();
  };

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const made = stage.current;
      if (made === undefined || writing(event)) return;
      const acts: Record<string, () => void> = {
        ArrowLeft: () => made.pan(-0.2),
        ArrowRight: () => made.pan(0.2),
        "+": () => made.zoom(0.6),
        "=": () => made.zoom(0.6),
        "-": () => made.zoom(1 / 0.6),
        w: whole,
        f: follow,
        g: () => set({ by: state.current.by === "group" ? undefined : "group" }),
        "[": () => made.stretch(-1),
        "]": () => made.stretch(1),
        Escape: () => chose(undefined, picture.current!),
      };
      const act = acts[event.key];
      if (act === undefined) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);

  if (missing) return <Empty>Spans are not recorded here.</Empty>;
  const filtered = group ? now?.groups?.find((known) => String(known.id) === group) : undefined;
  const owner = worker ? now?.workers?.find((known) => String(known.id) === worker) : undefined;
  return (
    <div class="stream">
      <div class="bar">
        <span class="choice" role="group" aria-label="Lanes">
          <button type="button" aria-pressed={by === "worker"} onClick={() => set({ by: undefined })}>
            by worker
          </button>
          <button type="button" aria-pressed={by === "group"} onClick={() => set({ by: "group" })}>
            by group
          </button>
        </span>
        <span class="choice" role="group" aria-label="Window">
          <button type="button" aria-pressed={follows} onClick={follow} title="f" disabled={now?.live === false}>
            follow
          </button>
          <button type="button" onClick={whole} title="w">
            whole run
          </button>
          <button type="button" onClick={() => stage.current?.zoom(0.5)} title="+" aria-label="zoom in">
            +
          </button>
          <button type="button" onClick={() => stage.current?.zoom(2)} title="-" aria-label="zoom out">
            −
          </button>
        </span>
        <span class="choice wide-only" role="group" aria-label="Height of lanes">
          <button type="button" onClick={() => stage.current?.stretch(-1)} title="[">
            flatter
          </button>
          <button type="button" onClick={() => stage.current?.stretch(1)} title="]">
            taller
          </button>
        </span>
        {(now?.spans?.older ?? 0) > 0 && (
          <span class="note since">
            single tasks since {moment(now?.spans?.from, now?.began)}; before: sums{by === "group" ? "" : ", by group"}
          </span>
        )}
        {(group || worker) && (
          <button type="button" class="filter" onClick={() => set({ group: undefined, worker: undefined })}>
            only {group ? <bdi>{shorten(filtered?.name ?? `group ${group}`, 40)}</bdi> : <bdi>{workerName(owner, worker ?? "")}</bdi>} ✕
          </button>
        )}
        <span class="note">
          {told?.error ? (
            <span class="warn">{shorten(told.error, 120)}</span>
          ) : told ? (
            <>
              {count(told.count)} spans in {count(told.size)} rectangles
              {told.count !== undefined && told.count > told.size && ", reduced to what the pixels show"}
            </>
          ) : (
            "asking…"
          )}
        </span>
      </div>
      <div class="stage-frame">
        <div
          class="stage"
          ref={box}
          tabIndex={0}
          role="application"
          aria-label="Task stream. Arrow keys pan, plus and minus zoom, w shows the whole run, f follows its end."
        />
      </div>
      {chosen && <Chosen {...chosen} began={now?.began} close={() => chose(undefined, chosen.picture)} />}
      <Key groups={told?.groups ?? []} />
    </div>
  );
}

function Chosen({
  found,
  picture,
  span,
  error,
  began,
  close,
}: {
  found: Rectangle;
  picture: Picture;
  span?: Span;
  error?: string;
  began: number | undefined;
  close: () => void;
}) {
  const task = found.kind <= 1 || found.kind === SEVERAL || found.kind === RUNNING || found.kind === 4;
  const group = span?.group ?? (task ? picture.groups.get(found.group) : undefined);
  const byGroup = picture.most > 0;
  const several = span === undefined && (found.count > 1 || found.kind === 15);
  const runs = span?.running ?? found.kind === RUNNING;
  const around = (found.to - found.from) / 2 + 1e6;
  const inside = runs ? undefined : span;
  const part = (a?: number, b?: number) => (a !== undefined && b !== undefined ? nanoseconds(b - a) : DASH);
  const kind = span?.kind ?? ((byGroup ? `up to ${count(found.count)} tasks at a time` : several ? `${count(found.count)} spans: zoom in for each` : kindName(found.kind)));
  return (
    <section class="chosen" aria-label="The chosen span">
      <button type="button" class="close" onClick={close} aria-label="close">
        ✕
      </button>
      <h2>
        {span?.key !== undefined ? <TaskLink name={span.key} most={160} /> : <GroupName name={group} />}
        {span?.ok === false && <em class="tag bad">✕ failed</em>}
        {runs && <em class="tag">● runs</em>}
      </h2>
      <dl class="facts">
        <div class="fact">
          <dt>group</dt>
          <dd>
            <a href={href("groups", { group: found.group })}>
              <GroupName name={group} most={36} />
            </a>
          </dd>
        </div>
        <div class="fact">
          <dt>kind</dt>
          <dd>{typeof kind === "number" ? kindName(kind) : kind}</dd>
        </div>
        <div class="fact">
          <dt>worker</dt>
          <dd>
            <bdi>{shorten(String(span?.worker ?? picture.lanes[found.lane]?.name ?? DASH), 40)}</bdi>
          </dd>
        </div>
        <div class="fact">
          <dt>began</dt>
          <dd>{moment(span?.from ?? found.from, began)}</dd>
        </div>
        <div class="fact">
          <dt>{runs ? "for" : "took"}</dt>
          <dd>{part(span?.from ?? found.from, span?.to ?? found.to)}</dd>
        </div>
        <div class="fact">
          <dt>inputs · compute · keep</dt>
          <dd>
            {part(inside?.from, inside?.read)} · {part(inside?.read ?? inside?.from, inside?.computed)} · {part(inside?.computed, inside?.to)}
          </dd>
        </div>
        <div class="fact">
          <dt>size</dt>
          <dd>{bytes(inside?.bytes)}</dd>
        </div>
      </dl>
      {span?.inputs && span.inputs.length > 0 && (
        <p class="inputs">
          inputs:{" "}
          {span.inputs.slice(0, 12).map((key) => (
            <TaskLink key={key} name={key} most={60} />
          ))}
          {span.inputs.length > 12 && ` and ${count(span.inputs.length - 12)} more`}
        </p>
      )}
      {byGroup && (
        <p>
          <a href={href("stream", { group: found.group, from: Math.max(0, Math.round(found.from - around)), to: Math.round(found.to + around) })}>
            its tasks, by worker
          </a>
        </p>
      )}
      {error && <p class="note">{several ? "Several spans are here: zoom in to see one." : shorten(error, 300)}</p>}
    </section>
  );
}

/** What colours and patterns mean. */
function Key({ groups: names }: { groups: string[] }) {
  return (
    <div class="key-row">
      {names.slice(0, 14).map((name) => (
        <span key={name}>
          <GroupName name={name} most={28} />
        </span>
      ))}
      {names.length > 14 && <span class="dim">and {count(names.length - 14)} more groups</span>}
      <span class="push" />
      {KINDS.slice(1).map((kind, n) => (
        <span key={kind.name} class="name">
          <i class={`swatch k${n + 1}`} style={{ backgroundColor: kind.colour || NEUTRAL }} />
          {kind.name}
        </span>
      ))}
    </div>
  );
}

