/** One task, by its key: its state, story, spans and error. */

import { useEffect, useRef } from "preact/hooks";
import { kindName } from "../colours";
import { bytes, count, DASH, instant, lines, moment, nanoseconds, shorten, text } from "../format";
import { overview, usePoll } from "../link";
import { Empty, Panel, TaskLink } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { href, route, set } from "../route";
import type { Log, Span } from "../types";

interface Told {
  key?: string;
  state?: string;
  group?: string;
  workers?: unknown[];
  story?: unknown[];
  spans?: Span[];
  inputs?: string[];
  nbytes?: number;
  error?: string;
  traceback?: string;
  /** Lines of its worker's log of that time. */
  log?: Log[];
  [other: string]: unknown;
}

const KNOWN = new Set(["key", "state", "group", "workers", "story", "spans", "error", "traceback", "log", "inputs", "nbytes"]);

/** A row of the story, which is an object, a tuple or a text. */
function cells(row: unknown): string[] {
  if (Array.isArray(row)) return row.map((part) => text(part));
  if (row !== null && typeof row === "object") {
    const { time, state, worker, ...more } = row as Record<string, unknown>;
    const rest = Object.entries(more).map(([name, value]) => `${name}: ${text(value)}`);
    return [typeof time === "number" ? instant(time) : text(time), text(state), worker ? `on ${text(worker)}` : "", ...rest];
  }
  return [text(row)];
}

function Story({ rows }: { rows: unknown[] }) {
  return (
    <ol class="story">
      {rows.slice(-200).map((row, n) => (
        <li key={n}>
          {cells(row).map((part, m) => (
            <span key={m}>
              <bdi>{shorten(part, 160)}</bdi>
            </span>
          ))}
        </li>
      ))}
    </ol>
  );
}

export function Task() {
  const key = route.value.with.get("key") ?? "";
  const field = useRef<HTMLInputElement>(null);
  const { value, missing, error } = usePoll<Told>(key === "" ? null : `sight/task?key=${encodeURIComponent(key)}`, 1000).value;
  useEffect(() => {
    if (key === "") field.current?.focus();
  }, [key]);
  const began = overview.value?.began;
  const more = Object.entries(value ?? {}).filter(([name]) => !KNOWN.has(name));
  const part = (a?: number, b?: number) => (a !== undefined && b !== undefined ? nanoseconds(b - a) : DASH);
  const columns: Column<Span>[] = [
    { id: "kind", title: "kind", width: "110px", cell: (s) => (typeof s.kind === "number" ? kindName(s.kind) : text(s.kind)) },
    { id: "worker", title: "worker", width: "minmax(100px, 1fr)", cell: (s) => <bdi>{shorten(s.worker === undefined ? undefined : String(s.worker), 60)}</bdi> },
    { id: "from", title: "began", width: "84px", number: true, cell: (s) => moment(s.from, began) },
    { id: "took", title: "took", width: "84px", number: true, cell: (s) => part(s.from, s.to) },
    { id: "inputs", title: "inputs", width: "84px", number: true, cell: (s) => part(s.from, s.read) },
    { id: "compute", title: "compute", width: "84px", number: true, cell: (s) => part(s.read ?? s.from, s.computed) },
    { id: "bytes", title: "bytes", width: "90px", number: true, cell: (s) => bytes(s.bytes) },
    { id: "ok", title: "end", width: "76px", cell: (s) => (s.ok === undefined ? DASH : s.ok ? "ok" : <em class="bad">✕ failed</em>) },
    {
      id: "show",
      title: "",
      width: "110px",
      cell: (s) => {
        if (s.from === undefined || s.to === undefined) return "";
        const around = Math.max(1e6, (s.to - s.from) * 3);
        return (
          <>
            <a href={href("stream", { worker: s.worker_id, from: Math.max(0, Math.round(s.from - around)), to: Math.round(s.to + around) })}>stream</a>{" "}
            <a href={href("logs", { worker: s.worker_id, from: Math.max(0, s.from - 1e9), to: s.to + 1e9 })}>log</a>
          </>
        );
      },
    },
  ];
  return (
    <div class="column">
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          set({ key: field.current?.value.trim() });
        }}
      >
        <input ref={field} id="task-key" class="long" type="search" placeholder="key of a task" aria-label="Key of a task" defaultValue={key} key={key} spellcheck={false} autocomplete="off" />
        <button type="submit">find</button>
      </form>
      {key === "" ? (
        <Empty>Write a key, or click a rectangle of the task stream.</Empty>
      ) : missing ? (
        <Empty>The scheduler does not know this task: it was never here, or is forgotten.</Empty>
      ) : value === undefined ? (
        <Empty>{error ? shorten(error, 200) : "Asking…"}</Empty>
      ) : (
        <>
          <Panel title={<bdi class="key">{shorten(value.key ?? key, 400)}</bdi>}>
            <dl class="facts">
              <div class={`fact ${value.state === "erred" || value.state === "failed" ? "bad" : ""}`}>
                <dt>state</dt>
                <dd>{text(value.state)}</dd>
              </div>
              <div class="fact">
                <dt>group</dt>
                <dd>
                  <bdi>{shorten(value.group, 60)}</bdi>
                </dd>
              </div>
              <div class="fact">
                <dt>workers</dt>
                <dd>
                  <bdi>{shorten((value.workers ?? []).map(text).join(", "), 200)}</bdi>
                </dd>
              </div>
              <div class="fact">
                <dt>size</dt>
                <dd>{bytes(value.nbytes)}</dd>
              </div>
              {more.map(([name, told]) => (
                <div class="fact" key={name}>
                  <dt>{name.replaceAll("_", " ")}</dt>
                  <dd>
                    <bdi>{typeof told === "number" && /bytes/.test(name) ? bytes(told) : shorten(text(told), 300)}</bdi>
                  </dd>
                </div>
              ))}
            </dl>
            {value.inputs && value.inputs.length > 0 && (
              <p class="inputs">
                inputs:{" "}
                {value.inputs.slice(0, 40).map((input, n) => (
                  <TaskLink key={n} name={input} most={60} />
                ))}
                {value.inputs.length > 40 && ` and ${count(value.inputs.length - 40)} more`}
              </p>
            )}
          </Panel>
          {value.error && (
            <Panel title="Error">
              <pre class="bad">{lines(`${value.traceback ?? ""}${value.error}`, 20_000)}</pre>
            </Panel>
          )}
          {value.log && value.log.length > 0 && (
            <Panel title="Its worker's log of that time">
              <pre>{lines(value.log.map((line) => `${moment(line.time, began)} ${(line.level ?? "").toLowerCase()}: ${line.text ?? ""}`).join("\n"), 20_000)}</pre>
            </Panel>
          )}
          {value.spans && value.spans.length > 0 && (
            <Panel title="Spans">
              <Table label="Spans" rows={value.spans} columns={columns} id={(_, n) => n} most={12} />
            </Panel>
          )}
          <Panel title="Story">
            {value.story === undefined || value.story.length === 0 ? <Empty>Not recorded.</Empty> : <Story rows={value.story} />}
          </Panel>
        </>
      )}
    </div>
  );
}
