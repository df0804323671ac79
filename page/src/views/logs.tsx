/** What loggers and tasks wrote. */

import { useState } from "preact/hooks";
import { clock, count, DASH, lines, shorten } from "../format";
import { overview, usePoll } from "../link";
import { Empty, workerName } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { route, set } from "../route";
import type { Log } from "../types";

const LEVELS: Record<string, string> = { ERROR: "✕", CRITICAL: "✕", WARNING: "▲", WARN: "▲" };

const COLUMNS: Column<Log>[] = [
  { id: "time", title: "time", width: "76px", cell: (log) => clock(log.time) },
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
  const query = new URLSearchParams();
  if (worker) query.set("worker", worker);
  if (find) query.set("find", find);
  const { value, missing, error } = usePoll<Log[]>(`sight/logs${query.size > 0 ? `?${query}` : ""}`, 2000).value;
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
        <input
          type="search"
          placeholder="text"
          aria-label="Find in logs"
          value={find}
          onChange={(event) => set({ find: event.currentTarget.value })}
        />
        <span class="note">
          {value ? `${count(value.length)} records${value.length >= 1000 ? ", the latest" : ""}` : ""}
          {error && <span class="warn"> {shorten(error, 120)}</span>}
        </span>
      </div>
      {missing ? (
        <Empty>Logs are not recorded here.</Empty>
      ) : value === undefined ? (
        <Empty>Asking…</Empty>
      ) : value.length === 0 ? (
        <Empty>No records{find || worker ? " that match" : " yet"}.</Empty>
      ) : (
        <Table label="Logs" rows={value} columns={COLUMNS} id={(_, n) => n} onRow={setChosen} stay={chosen ? undefined : "end"} />
      )}
      {chosen && (
        <section class="chosen">
          <button type="button" class="close" aria-label="close" onClick={() => setChosen(undefined)}>
            ✕
          </button>
          <h2>
            {clock(chosen.time)} <bdi>{shorten(String(chosen.worker ?? DASH), 60)}</bdi>
          </h2>
          <pre>{lines(chosen.text, 20_000)}</pre>
        </section>
      )}
    </div>
  );
}
