/** What is wrong, and how far the run is. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { dark, variable } from "../colours";
import { bytes, count, DASH, decimal, lines, moment, perSecond, percent, seconds, shorten } from "../format";
import { askJson, overview } from "../link";
import { penOn, useWidth } from "../parts/canvas";
import { Chart } from "../parts/chart";
import { Memory } from "../parts/memory";
import { done, Empty, Fact, GroupName, inState, Legend, Panel, Progress, Share, SIGNS, STATES, TaskLink, workerName } from "../parts/small";
import { go, href } from "../route";
import type { Failure, Failures, Overview as Told, Series, Verdict, Worker } from "../types";

const SEVERITIES: Record<string, [string, string]> = {
  bad: ["✕", "problem"],
  warn: ["▲", "warning"],
  note: ["●", "note"],
};

function place(verdict: Verdict, over: boolean): string {
  const where = verdict.where ?? {};
  if (where.key !== undefined) return href("task", { key: where.key });
  const view = verdict.view ?? "overview";
  const [from, to] = [Math.max(0, (verdict.first ?? 0) - 60e9), verdict.last];
  const window = over && view === "stream" && to !== undefined ? { from, to } : {};
  return href(view, { group: where.group, worker: where.worker, shuffle: where.shuffle, ...window });
}

function OneVerdict({ verdict, over, began }: { verdict: Verdict; over: boolean; began: number | undefined }) {
  const [sign, name] = SEVERITIES[verdict.severity ?? "note"] ?? SEVERITIES["note"]!;
  const [first, last] = [moment(verdict.first, began), moment(verdict.last, began)];
  return (
    <li>
      <a class={`verdict ${over ? "over" : ""} ${verdict.severity ?? "note"}`} href={place(verdict, over)}>
        <b title={name} aria-label={name}>
          {sign}
        </b>
        <span>
          {over && <time>{first === last ? first : `${first} to ${last}`} </time>}
          {shorten(verdict.text, 500)}
        </span>
        <small>{verdict.view ?? ""} ›</small>
      </a>
    </li>
  );
}

/** What is wrong now, and what was before. Of a run that is over, all is before. */
function Verdicts({ now }: { now: Told }) {
  if (now.verdicts === undefined) return null;
  const live = now.live !== false;
  const current = live ? now.verdicts : [];
  const earlier = [...(live ? [] : now.verdicts), ...(now.earlier ?? [])];
  const list = (verdicts: Verdict[], over: boolean, label: string) => (
    <ul class="verdicts" aria-label={label}>
      {verdicts.slice(0, 12).map((verdict, n) => (
        <OneVerdict key={`${verdict.rule} ${n}`} verdict={verdict} over={over} began={now.began} />
      ))}
      {verdicts.length > 12 && <li class="dim">and {verdicts.length - 12} more</li>}
    </ul>
  );
  return (
    <>
      {current.length > 0 && list(current, false, "What is wrong")}
      {current.length === 0 && (live || earlier.length === 0) && (
        <p class="verdict well">
          <b aria-hidden="true">✓</b> {live ? (earlier.length > 0 ? "Nothing is wrong now." : "Nothing is wrong that the spans show.") : "Nothing was wrong that the spans show."}
        </p>
      )}
      {earlier.length > 0 && (
        <>
          <h2 class="earlier">{live ? "Earlier in this run" : "In this run"}</h2>
          {list(earlier, true, live ? "What was wrong earlier" : "What was wrong")}
        </>
      )}
    </>
  );
}

/** As many workers as have a row each here. */
const FEW = 12;

function Few({ workers }: { workers: Worker[] }) {
  return (
    <ul class="few">
      <li class="head-of">
        <span>name</span>
        <span>busy</span>
        <span>memory</span>
        <span class="number">process</span>
      </li>
      {workers.map((worker) => (
        <li key={worker.id}>
          <a href={href("workers", { worker: worker.id })} title={worker.status}>
            <b class={`sign status ${worker.status ?? ""}`}>
              {worker.status === "running" ? "" : (SIGNS[worker.status ?? ""] ?? "")}
            </b>
            <bdi>{workerName(worker)}</bdi>
          </a>
          <Share share={worker.busy} />
          <Memory worker={worker} />
          <span class="number">{bytes(worker.process)}</span>
        </li>
      ))}
    </ul>
  );
}

/** A cell for each worker: filled as far as its threads are busy, marked where something is wrong. */
function Glance({ workers }: { workers: Worker[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const wide = useWidth(canvas);
  const [under, setUnder] = useState<Worker>();
  const size = workers.length > 400 ? 9 : workers.length > 120 ? 13 : 22;
  const gap = workers.length > 400 ? 2 : 3;
  const columns = Math.max(1, Math.floor((wide + gap) / (size + gap)));
  const rows = Math.ceil(workers.length / columns);
  const height = Math.max(size, rows * (size + gap) - gap);
  useLayoutEffect(() => {
    const pen = penOn(canvas.current!, wide, height);
    const colours = { track: variable("track"), busy: variable("running"), bad: variable("failed"), text: variable("text") };
    workers.forEach((worker, n) => {
      const x = (n % columns) * (size + gap);
      const y = Math.floor(n / columns) * (size + gap);
      pen.fillStyle = colours.track;
      pen.fillRect(x, y, size, size);
      const busy = Math.min(1, Math.max(0, worker.busy ?? 0));
      pen.fillStyle = colours.busy;
      pen.fillRect(x, y + size * (1 - busy), size, size * busy);
      if (worker.status && worker.status !== "running") {
        pen.strokeStyle = worker.status === "gone" ? colours.bad : colours.text;
        pen.lineWidth = size > 10 ? 2 : 1.5;
        pen.beginPath();
        const [a, b] = [size * 0.28, size * 0.72];
        if (worker.status === "paused") {
          for (const at of [0.36, 0.64]) {
            pen.moveTo(x + size * at, y + a);
            pen.lineTo(x + size * at, y + b);
          }
        } else if (worker.status === "gone") {
          pen.moveTo(x + a, y + a);
          pen.lineTo(x + b, y + b);
          pen.moveTo(x + b, y + a);
          pen.lineTo(x + a, y + b);
        } else {
          pen.moveTo(x + a, y + size / 2);
          pen.lineTo(x + b, y + size / 2);
        }
        pen.stroke();
      }
    });
  }, [workers, wide, height, dark.value]);
  const at = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / (size + gap));
    const row = Math.floor((event.clientY - box.top) / (size + gap));
    return column < columns ? workers[row * columns + column] : undefined;
  };
  return (
    <>
      <div class="glance">
        <canvas
          ref={canvas}
          style={{ width: `${wide}px`, height: `${height}px` }}
          role="img"
          aria-label={`${workers.length} workers; the table is in the view workers`}
          onMouseMove={(event) => setUnder(at(event))}
          onMouseLeave={() => setUnder(undefined)}
          onClick={(event) => {
            const worker = at(event);
            if (worker) go("workers", { worker: worker.id });
          }}
        />
      </div>
      <p class="note one-line">
        {under ? (
          <>
            <bdi>{workerName(under)}</bdi>: {under.status ?? DASH}, busy {percent(under.busy)}, {bytes(under.process)} of{" "}
            {bytes(under.memory_limit)}
          </>
        ) : (
          <>
            Filled: threads busy in 10 s. <b>‖</b> paused <b>–</b> draining <b>✕</b> gone
          </>
        )}
      </p>
    </>
  );
}

/** Where a task raised, for who asks. */
function Traceback({ failure }: { failure: Failure }) {
  const [told, setTold] = useState<string>();
  const open = async () => {
    const all = await askJson<Failures>("sight/errors").catch(() => undefined);
    const own = all?.errors?.find((one) => one.group === failure.group && one.text === failure.text && one.raised === failure.raised);
    setTold(own?.traceback || "Its traceback is not known.");
  };
  return (
    <details onToggle={(event) => event.currentTarget.open && void open()}>
      <summary>
        traceback{" "}
        <a href={href("logs", { worker: failure.worker_id, from: Math.max(0, (failure.time ?? 0) - 5e9), to: (failure.time ?? 0) + 1e9 })}>log</a>
      </summary>
      <pre>{told === undefined ? "Asking…" : lines(told, 20_000)}</pre>
    </details>
  );
}

/** A dozen of what happened, the last first. */
function latest<T extends { time?: number }>(all: T[]): T[] {
  return [...all].sort((a, b) => (b.time ?? 0) - (a.time ?? 0)).slice(0, 12);
}

function row(series: Series | undefined, name: string): (number | null)[] | undefined {
  const at = series?.names?.indexOf(name) ?? -1;
  return at < 0 ? undefined : series?.values?.[at];
}

function Charts({ now }: { now: Told }) {
  const [whole, setWhole] = useState(now.live === false);
  const series = whole && now.whole ? now.whole : now.series;
  const step = series?.step ?? 1;
  const to = series?.to ?? now.now;
  // Steps that are still to come have no value, and the one that goes on has a part of it.
  const future = Math.max(0, Math.ceil((to - now.now) / 1e9 / step));
  const all = Math.max(0, ...(series?.values ?? []).map((values) => values.length)) - future;
  // Nor have those before the run.
  const length = Math.min(all, Math.ceil(to / 1e9 / step) - future);
  if (length <= 0) return <Empty>Series are not recorded yet.</Empty>;
  const end = (now.began ?? 0) + to / 1e9 - future * step;
  const times = Array.from({ length }, (_, n) => end - (length - 1 - n) * step);
  const line = (name: string, told: string, colour: string, more: { dash?: number[]; fill?: boolean } = {}) => {
    const values = row(series, name);
    return values ? [{ name: told, values: values.slice(all - length, all), colour, ...more }] : [];
  };
  const ink = variable("line-1");
  const second = variable("line-2");
  const third = variable("line-3");
  // No process has no memory: nobody has said how much then.
  const told = row(series, "process")?.slice(all - length, all);
  const memory = [
    ...line("process", "process", ink),
    ...line("managed", "managed", second, { dash: [6, 3], fill: true }),
  ].map((one) => ({ ...one, gaps: true, values: one.values.map((value, n) => (told?.[n] === 0 ? null : value)) }));
  return (
    <div class="charts">
      {now.whole && (
        <span class="choice" role="group" aria-label="Time of the series">
          <button type="button" aria-pressed={!whole} onClick={() => setWhole(false)}>
            last 10 minutes
          </button>
          <button type="button" aria-pressed={whole} onClick={() => setWhole(true)}>
            whole run
          </button>
        </span>
      )}
      <Chart title="Tasks per second" times={times} show={decimal} lines={line("tasks", "tasks", ink, { fill: true })} />
      <Chart title="Threads busy" times={times} show={decimal} lines={line("busy", "busy", ink, { fill: true })} />
      <Chart title="Memory" times={times} show={bytes} binary lines={memory} />
      <Chart
        title="Transfers"
        times={times}
        show={perSecond}
        binary
        lines={[...line("fetched", "fetched", ink), ...line("spilled", "spilled", third, { dash: [2, 2] })]}
      />
    </div>
  );
}

export function Overview() {
  const now = overview.value;
  if (now === undefined) return <Empty>Asking the scheduler…</Empty>;
  const workers = now.workers ?? [];
  const tasks = now.tasks ?? {};
  const groups = now.groups ?? [];
  const totals = now.totals ?? {};
  const paused = totals.paused ?? 0;
  const failed = tasks.failed ?? 0;
  return (
    <div class="overview">
      <Verdicts now={now} />
      <dl class="facts strip">
        <Fact name="waiting">{count(tasks.waiting)}</Fact>
        <Fact name="ready">{count(tasks.ready)}</Fact>
        <Fact name="at workers">{count(tasks.assigned)}</Fact>
        <Fact name="in memory">{count(tasks.memory)}</Fact>
        <Fact name="failed" bad={failed > 0}>
          {failed > 0 && "✕ "}
          {count(tasks.failed)}
        </Fact>
        <Fact name="tasks per second">{decimal(now.rate)}</Fact>
        <Fact name="workers">
          {count(totals.workers)}
          {paused > 0 && <small> ‖ {count(paused)} paused</small>}
          {(totals.gone ?? 0) > 0 && <small> ✕ {count(totals.gone)} gone</small>}
        </Fact>
        <Fact name="threads">{count(totals.threads)}</Fact>
        <Fact name="memory">
          {bytes(totals.process)}
          {totals.memory_limit !== undefined && <small> of {bytes(totals.memory_limit)}</small>}
        </Fact>
        <Fact name="spilled">{bytes(totals.spilled)}</Fact>
      </dl>
      <div class="two">
        <Panel
          title="Progress by group"
          kind="progress-panel"
          more={<Legend states={STATES} />}
        >
          {now.groups === undefined ? (
            <Empty>Not recorded.</Empty>
          ) : groups.length === 0 ? (
            <Empty>No tasks yet.</Empty>
          ) : (
            <ul class="bars">
              {groups.slice(0, 12).map((group) => (
                <li key={group.id}>
                  <a href={href("groups", { group: group.id })}>
                    <GroupName name={group.name} most={34} />
                  </a>
                  <Progress group={group} />
                  <span class="number">
                    {inState(group, "failed") > 0 && <em class="bad">✕ {count(inState(group, "failed"))} </em>}
                    {count(done(group))} / {count(group.total)}
                  </span>
                </li>
              ))}
            </ul>
          )}
          {groups.length > 12 && (
            <p class="note">
              <a href={href("groups")}>all {count(groups.length + (now.more_groups ?? 0))} groups</a>
            </p>
          )}
        </Panel>
        <Panel title="Workers">
          {now.workers === undefined ? (
            <Empty>Not known.</Empty>
          ) : workers.length === 0 ? (
            <Empty>No worker has joined.</Empty>
          ) : workers.length <= FEW ? (
            <Few workers={workers} />
          ) : (
            <Glance workers={workers} />
          )}
        </Panel>
      </div>
      <Charts now={now} />
      <div class="two">
        <Panel title="Errors">
          {now.errors === undefined ? (
            <Empty>Not recorded.</Empty>
          ) : now.errors.length === 0 ? (
            <Empty>None.</Empty>
          ) : (
            <ul class="happenings">
              {latest(now.errors).map((failure, n) => (
                <li key={`${failure.key} ${failure.time} ${n}`}>
                  <time>{moment(failure.time, now.began)}</time>
                  <div>
                    {(failure.count ?? 1) > 1 && <em class="tag bad">{count(failure.count)} ×</em>}{" "}
                    <TaskLink name={failure.key} most={60} />
                    <code>{shorten((failure.text ?? "").trim().split("\n").at(-1), 160)}</code>
                    {failure.worker_id !== undefined && <Traceback failure={failure} />}
                  </div>
                </li>
              ))}
              {(now.more_errors ?? 0) > 0 && <li class="dim">and {count(now.more_errors)} runs that raised, of which no text is kept</li>}
            </ul>
          )}
        </Panel>
        <Panel title="Workers that came and went">
          {now.events === undefined ? (
            <Empty>Not recorded.</Empty>
          ) : now.events.length === 0 ? (
            <Empty>None.</Empty>
          ) : (
            <ul class="happenings">
              {latest(now.events).map((event, n) => (
                <li key={`${event.time} ${n}`}>
                  <time>{moment(event.time, now.began)}</time>
                  <div>
                    <em class={`tag ${event.kind === "lost" ? "bad" : ""}`}>
                      {event.kind === "lost" ? "✕ " : event.kind === "paused" ? "‖ " : ""}
                      {event.kind ?? DASH}
                    </em>{" "}
                    <bdi>{shorten(event.worker === undefined ? undefined : String(event.worker), 48)}</bdi>{" "}
                    <span class="dim">{event.text ? shorten(event.text, 140) : ""}</span>
                  </div>
                </li>
              ))}
            </ul>
          )}
        </Panel>
      </div>
      <p class="note foot">
        Spans: {count(now.spans?.kept)} kept in {bytes(now.spans?.bytes)} of {bytes(now.spans?.limit)}
        {(now.spans?.older ?? 0) > 0 && <>, {count(now.spans?.older)} older ones are in sums only</>}
        {(now.spans?.lost ?? 0) > 0 && <>, {count(now.spans?.lost)} lost at workers</>}
        {(now.spans?.dropped ?? 0) > 0 && <>, {count(now.spans?.dropped)} batches dropped</>}. Run:{" "}
        {seconds(now.now / 1e9)}. Treadle {now.cluster?.treadle ?? DASH}.
      </p>
    </div>
  );
}
