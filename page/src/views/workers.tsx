/** The workers: what they do, and what their memory is full of. */

import { bytes, count, DASH, decimal, percent, seconds, shorten } from "../format";
import { isReport } from "../held";
import { overview, usePoll } from "../link";
import { Memory } from "../parts/memory";
import { Empty, Fact, Legend, Panel, Share, SIGNS, TaskLink, workerName } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { href, route, set } from "../route";
import { OTHERS } from "../stream/decode";
import type { Overview, Worker } from "../types";

const MEMORY = [
  ["managed", "values"],
  ["other", "other memory of the process"],
  ["spilled", "spilled to disk"],
] as const;

function Status({ worker }: { worker: Worker }) {
  const status = worker.status ?? "";
  if (status === "") return <>{DASH}</>;
  return (
    <span class={`status ${status}`} title={shorten(worker.why, 300)}>
      <b aria-hidden="true">{SIGNS[status] ?? "?"}</b> {status}
      {worker.why && <span class="dim">: {shorten(worker.why, 80)}</span>}
    </span>
  );
}

/** The tasks that have run longest, of all workers or of one. */
function LongRunning({ chosen }: { chosen: number | undefined }) {
  const now = overview.value;
  const running = (now?.running ?? []).filter((task) => chosen === undefined || task.worker_id === chosen);
  if (now === undefined || running.length === 0) return null;
  const shown = running.slice(0, 8);
  const more = running.length - shown.length + (now.more_running ?? 0);
  return (
    <Panel title="Running for longest">
      <ul class="happenings">
        {shown.map((task) => (
          <li key={`${task.worker_id} ${task.lane} ${task.from}`}>
            <b class="number">{seconds(Math.max(0, Math.floor((now.now - (task.from ?? now.now)) / 1e9)))}</b>
            <div>
              {(task.lane ?? 0) >= OTHERS ? <bdi>{shorten(task.key, 60)}</bdi> : <TaskLink name={task.key} most={60} />} <span class="dim">at</span>{" "}
              <bdi>{shorten(String(task.worker ?? DASH), 48)}</bdi>
            </div>
          </li>
        ))}
        {more > 0 && <li class="dim">and {count(more)} more</li>}
      </ul>
    </Panel>
  );
}

const share = (worker: Worker) =>
  worker.process !== undefined && worker.memory_limit ? worker.process / worker.memory_limit : undefined;

const disk = (worker: Worker) => sum(worker.disk_read, worker.disk_written);
const net = (worker: Worker) => sum(worker.net_received, worker.net_sent);
const rate = (value: number | undefined) => (value === undefined ? DASH : `${bytes(value)}/s`);
const both = (into: number | undefined, out: number | undefined) => `${rate(into)} in, ${rate(out)} out`;

function sum(one: number | undefined, other: number | undefined) {
  return one === undefined && other === undefined ? undefined : (one ?? 0) + (other ?? 0);
}

const WAITED_FOR = ["processors", "memory", "disks"];

/** What its machine waited for most. */
function stalled(worker: Worker) {
  const shares = (worker.stalled ?? []).map((share) => share ?? 0);
  const most = Math.max(...shares);
  return shares.length === 0 ? undefined : { most, what: WAITED_FOR[shares.indexOf(most)] };
}

const stalls = (worker: Worker) =>
  (worker.stalled ?? []).map((share, place) => `${WAITED_FOR[place]} ${percent(share ?? undefined)}`).join(", ") || DASH;

const COLUMNS: Column<Worker>[] = [
  { id: "name", title: "worker", width: "minmax(110px, 1.2fr)", sort: (w) => String(w.name ?? w.address ?? w.id), cell: (w) => <bdi title={shorten(String(w.name ?? ""), 300)}>{workerName(w, w.id)}</bdi> },
  { id: "status", title: "status", width: "minmax(96px, 1.3fr)", sort: (w) => w.status, cell: (w) => <Status worker={w} /> },
  { id: "busy", title: "busy", width: "80px", number: true, hint: "share of the threads in the last 10 s", sort: (w) => w.busy, cell: (w) => <Share share={w.busy} /> },
  { id: "memory", title: "memory", width: "minmax(100px, 1.4fr)", hint: "against its limit", sort: share, cell: (w) => <Memory worker={w} /> },
  { id: "process", title: "process", width: "74px", number: true, sort: (w) => w.process, cell: (w) => bytes(w.process) },
  { id: "cpu", title: "CPU", width: "52px", number: true, hint: "of one core", sort: (w) => w.cpu, cell: (w) => percent(w.cpu) },
  { id: "tasks", title: "tasks", width: "46px", number: true, sort: (w) => w.tasks, cell: (w) => count(w.tasks) },
  { id: "threads", title: "threads", width: "56px", number: true, sort: (w) => w.threads, cell: (w) => count(w.threads) },
  { id: "spilled", title: "spilled", width: "74px", number: true, sort: (w) => w.spilled, cell: (w) => bytes(w.spilled) },
  { id: "native", title: "native", width: "74px", number: true, hint: "memory of the process beside its values", sort: (w) => w.native, cell: (w) => bytes(w.native) },
  { id: "disk", title: "disk", width: "84px", number: true, hint: "read and written by the process, a second", sort: disk, cell: (w) => <span title={both(w.disk_read, w.disk_written)}>{rate(disk(w))}</span> },
  { id: "net", title: "network", width: "84px", number: true, hint: "of its machine, a second", sort: net, cell: (w) => <span title={both(w.net_received, w.net_sent)}>{rate(net(w))}</span> },
  { id: "stalled", title: "stalled", width: "60px", number: true, hint: "share of the time in which something on its machine waited for processors, memory or disks: the largest", sort: (w) => stalled(w)?.most, cell: (w) => <span title={stalls(w)}>{percent(stalled(w)?.most)}</span> },
  { id: "values", title: "values", width: "54px", number: true, sort: (w) => w.values, cell: (w) => count(w.values) },
  { id: "sent", title: "sent", width: "74px", number: true, sort: (w) => w.sent, cell: (w) => bytes(w.sent) },
  { id: "received", title: "received", width: "74px", number: true, sort: (w) => w.received, cell: (w) => bytes(w.received) },
  { id: "heard", title: "heard", width: "58px", number: true, hint: "ago", sort: (w) => w.heard, cell: (w) => seconds(w.heard) },
];

type Found = Required<Pick<Overview, "workers" | "more_workers">>;

export function Workers() {
  const now = overview.value;
  const { with: settings } = route.value;
  const workers = now?.workers;
  const find = (settings.get("find") ?? "").toLowerCase();
  const chosen = settings.has("worker") ? Number(settings.get("worker")) : undefined;
  const has = (worker: Worker) => `${worker.name} ${worker.address} ${worker.host} ${worker.status}`.toLowerCase().includes(find);
  // The overview has the first of many: the server looks for others.
  const beyond = !isReport && (now?.more_workers ?? 0) > 0;
  const asksAll = beyond && find !== "";
  const found = usePoll<Found>(asksAll ? `sight/workers?find=${encodeURIComponent(find)}` : null, 1000).value.value;
  const asksOne = beyond && chosen !== undefined && !workers?.some((known) => known.id === chosen);
  const one = usePoll<Found>(asksOne ? `sight/workers?worker=${chosen}` : null, 1000).value.value;
  if (workers === undefined) return <Empty>Workers are not known.</Empty>;
  if (workers.length === 0) return <Empty>No worker has joined.</Empty>;
  const rows = asksAll && found ? found.workers : workers.filter(has);
  const worker = [...workers, ...(one?.workers ?? [])].find((known) => known.id === chosen);
  const all = workers.length + (now?.more_workers ?? 0);
  const left = asksAll ? (found?.more_workers ?? 0) : (now?.more_workers ?? 0);
  return (
    <div class="column whole">
      <div class="bar">
        <input
          type="search"
          placeholder="name, host or status"
          aria-label="Find workers"
          value={settings.get("find") ?? ""}
          onInput={(event) => set({ find: event.currentTarget.value })}
        />
        <span class="note">
          {rows.length === all ? count(all) : `${count(rows.length)} of ${count(all)}`} workers
          {left > 0 && (asksAll ? `, ${count(left)} more have that text` : ": look for the others by their name")}
        </span>
        <span class="push" />
        <Legend states={MEMORY.map(([state, name]) => [`memory ${state}`, name] as const)} />
      </div>
      {worker && (
        <section class="chosen">
          <button type="button" class="close" aria-label="close" onClick={() => set({ worker: undefined })}>
            ✕
          </button>
          <h2>
            <bdi>{workerName(worker)}</bdi> <Status worker={worker} />
          </h2>
          <dl class="facts">
            <Fact name="address">
              <bdi>{shorten(worker.address, 60)}</bdi>
            </Fact>
            <Fact name="host · pid">
              {shorten(worker.host, 40)} · {worker.pid ?? DASH}
            </Fact>
            <Fact name="values">{bytes(worker.managed)}</Fact>
            <Fact name="process">{bytes(worker.process)}</Fact>
            <Fact name="native">{bytes(worker.native)}</Fact>
            <Fact name="spilled">{bytes(worker.spilled)}</Fact>
            <Fact name="limit">{bytes(worker.memory_limit)}</Fact>
            <Fact name="spans lost">{count(worker.lost)}</Fact>
            <Fact name="CPU">{percent(worker.cpu)}</Fact>
            <Fact name="disk read · written">
              {rate(worker.disk_read)} · {rate(worker.disk_written)}
            </Fact>
            <Fact name="network in · out">
              {rate(worker.net_received)} · {rate(worker.net_sent)}
            </Fact>
            <Fact name="machine waits for">{stalls(worker)}</Fact>
            <Fact name="tasks · threads">
              {decimal(worker.tasks)} · {decimal(worker.threads)}
            </Fact>
          </dl>
          <nav class="links">
            <a href={href("stream", { worker: worker.id })}>task stream</a>
            {!isReport && <a href={href("profile", { worker: worker.id })}>profile</a>}
            <a href={href("logs", { worker: worker.id })}>logs</a>
          </nav>
        </section>
      )}
      <LongRunning chosen={chosen} />
      <Table
        label="Workers"
        rows={rows}
        columns={COLUMNS}
        id={(row) => row.id}
        sort={settings.get("sort") ?? "name"}
        onSort={(sort) => set({ sort })}
        onRow={(row) => set({ worker: row.id === chosen ? undefined : row.id })}
        chosen={chosen}
      />
    </div>
  );
}
