/** What loggers and tasks wrote. */

import { useMemo, useState } from "preact/hooks";
import { count, DASH, lines, moment, shorten } from "../format";
import { overview, usePoll } from "../link";
import { Empty, workerName } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { href, route, set } from "../route";
import type { Log, Logs as Told } from "../types";

const LEVELS: Record<string, string> = { ERROR: "✕", CRITICAL: "✕", WARNING: "▲", WARN: "▲" };

const COLUMNS: Column<Log>[] = [
  { id: "time", title: "time", width: "76px", cell: (log) => moment(log.time, overview.value?.began) },
  {
    id: "level",
    title: "level",
    width: "88px",
    cell: (log) => {
      const level = String(log.level ?? DASH).toUpperCase();
      const sign = LEVELS[level];
      return <em class={sign === "✕" ? "bad" : sign ? "warn" : "dim"}>{`${sign ?? ""} ${shorten(level.toLowerCase(), 12)}`}</em>;
    },
  },
  { id: "worker", title: "worker", width: "minmax(80px, 160px)", cell: (log) => <bdi>{shorten(String(log.worker ?? DASH), 40)}</bdi> },
  { id: "text", title: "text", width: "minmax(260px, 1fr)", cell: (log) => <code><bdi>{shorten((log.text ?? "").replaceAll("\n", " ⏎ "), 400)}</bdi></code> },
];

export function Logs() {
  const { with: settings } = route.value;
  const worker = settings.get("worker") ?? "";
  const find = settings.get("find") ?? "";
  const level = settings.get("level") ?? "";
  const query = new URLSearchParams();
  const [from, to] = [settings.get("from") ?? "", settings.get("to") ?? ""];
  for (const [name, value] of Object.entries({ worker, find, level, from, to })) if (value) query.set(name, value);
  const { value: told, missing, error } = usePoll<Told>(`sight/logs${query.size > 0 ? `?${query}` : ""}`, 2000).value;
  // The latest is at the end.
  const value = useMemo(() => told && [...(told.lines ?? [])].reverse(), [told]);
  const [chosen, setChosen] = useState<Log>();
  const workers = overview.value?.workers ?? [];
  return (
    <div class="column whole">
      <div class="bar">
        <label>
          worker{" "}
          <select value={worker} onChange={(event) => set({ worker: event.currentTarget.value })}>
            <option value="">all</option>
            {workers.map((known) => (
              <option key={known.id} value={known.id}>
                {workerName(known)}
              </option>
            ))}
          </select>
        </label>
        <label>
          level{" "}
          <select value={level} onChange={(event) => set({ level: event.currentTarget.value })}>
            <option value="">all</option>
            {["info", "warning", "error"].map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <input
          type="search"
          placeholder="text"
          aria-label="Find in logs"
          value={find}
          onChange={(event) => set({ find: event.currentTarget.value })}
        />
        {(from || to) && (
          <button type="button" class="filter" aria-label="Lines of all times" onClick={() => set({ from: undefined, to: undefined })}>
            {moment(Number(from), overview.value?.began)} to {to ? moment(Number(to), overview.value?.began) : "now"} ✕
          </button>
        )}
        <span class="note">
          {value ? `${count(value.length)} lines${told?.more ? ", the latest" : ""}` : ""}
          {(told?.lost ?? 0) > 0 && `; ${count(told?.lost)} are not kept`}
          {error && <span class="warn"> {shorten(error, 120)}</span>}
        </span>
      </div>
      {missing ? (
        <Empty>Logs are not recorded here.</Empty>
      ) : value === undefined ? (
        <Empty>Asking…</Empty>
      ) : value.length === 0 ? (
        <Empty>No lines{find || worker || level || from || to ? " that match" : " yet"}.</Empty>
      ) : (
        <Table label="Logs" rows={value} columns={COLUMNS} id={(_, n) => n} onRow={setChosen} stay={chosen ? undefined : "end"} />
      )}
      {chosen && (
        <section class="chosen">
          <button type="button" class="close" aria-label="close" onClick={() => setChosen(undefined)}>
            ✕
          </button>
          <h2>
            {moment(chosen.time, overview.value?.began)} <bdi>{shorten(String(chosen.worker ?? DASH), 60)}</bdi>
          </h2>
          {chosen.time !== undefined && (
            <nav class="links">
              <a href={href("stream", { worker: chosen.worker_id, from: Math.max(0, chosen.time - 5e9), to: chosen.time + 1e9 })}>
                task stream at that time
              </a>
            </nav>
          )}
          <pre>{lines(chosen.text, 20_000)}</pre>
        </section>
      )}
    </div>
  );
}
