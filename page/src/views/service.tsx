/** The shuffle service, as its master or one of its servers knows it. */

import { bytes, clock, count, DASH, decimal, perSecond, seconds, shorten, sum } from "../format";
import { overview } from "../link";
import { Empty, Fact, Panel, Share } from "../parts/small";
import { skewColumn } from "../parts/skew";
import { Table, type Column } from "../parts/table";
import { route, set } from "../route";
import type { Application, Device, Master, Served, Server, ShuffleServer } from "../types";

const MOST_ROWS = 14;

function Yes({ when, sign, children }: { when: boolean | undefined; sign: string; children: string }) {
  return when ? (
    <em class={sign === "✕" ? "bad" : "warn"}>
      {sign} {children}{" "}
    </em>
  ) : null;
}

/** A text of somebody's, cut. */
function Text({ text, most }: { text: string | null | undefined; most: number }) {
  return <bdi title={shorten(text ?? undefined, 400)}>{shorten(text ?? undefined, most)}</bdi>;
}

/** The number of an application: its first digits tell it from others. */
function Number_({ of }: { of: string | undefined }) {
  return of === undefined ? <>{DASH}</> : <code title={of}>{of.slice(0, 8)}</code>;
}

function Status({ server }: { server: ShuffleServer }) {
  const well = !server.leaving && !server.full && !server.slow;
  return (
    <>
      {well && "● takes rows"}
      <Yes when={server.leaving} sign="◐">leaves</Yes>
      <Yes when={server.full} sign="✕">full</Yes>
      <Yes when={server.slow} sign="▲">slow</Yes>
    </>
  );
}

const room = (server: ShuffleServer) => {
  const all = (server.held_bytes ?? 0) + (server.free_bytes ?? 0);
  return server.held_bytes !== undefined && all > 0 ? server.held_bytes / all : undefined;
};

const SERVERS: Column<ShuffleServer>[] = [
  { id: "name", title: "server", width: "minmax(110px, 1.4fr)", sort: (s) => s.name, cell: (s) => <Text text={s.name} most={48} /> },
  { id: "status", title: "status", width: "minmax(110px, 1fr)", sort: (s) => Number(s.leaving) * 4 + Number(s.full) * 2 + Number(s.slow), cell: (s) => <Status server={s} /> },
  { id: "used", title: "room used", width: "84px", number: true, sort: room, cell: (s) => <Share share={room(s)} /> },
  { id: "held", title: "held", width: "78px", number: true, sort: (s) => s.held_bytes, cell: (s) => bytes(s.held_bytes) },
  { id: "free", title: "free", width: "78px", number: true, hint: "in memory and on disks", sort: (s) => s.free_bytes, cell: (s) => bytes(s.free_bytes) },
  { id: "partitions", title: "partitions", width: "74px", number: true, hint: "copies of them", sort: (s) => s.partitions, cell: (s) => count(s.partitions) },
  { id: "rate", title: "takes", width: "80px", number: true, sort: (s) => s.rate, cell: (s) => perSecond(s.rate) },
  { id: "waiting", title: "waiting", width: "58px", number: true, hint: "requests", sort: (s) => s.waiting_requests, cell: (s) => count(s.waiting_requests) },
  { id: "weight", title: "weight", width: "62px", number: true, hint: "what of new partitions it gets, compared to the others", sort: (s) => s.weight, cell: (s) => count(s.weight) },
  { id: "share", title: "share", width: "58px", number: true, hint: "of what its weight says, for how fast it takes rows", sort: (s) => s.share, cell: (s) => decimal(s.share) },
  { id: "domain", title: "fails with", width: "minmax(80px, 0.8fr)", hint: "its failure domain", sort: (s) => s.domain, cell: (s) => <Text text={s.domain} most={32} /> },
];

const APPLICATIONS: Column<Application>[] = [
  { id: "application", title: "application", width: "minmax(100px, 1fr)", sort: (a) => a.application, cell: (a) => <Number_ of={a.application} /> },
  { id: "processes", title: "processes", width: "76px", number: true, sort: (a) => a.processes, cell: (a) => count(a.processes) },
  { id: "shuffles", title: "shuffles", width: "66px", number: true, sort: (a) => a.shuffles, cell: (a) => count(a.shuffles) },
  { id: "priority", title: "priority", width: "62px", number: true, sort: (a) => a.priority ?? undefined, cell: (a) => count(a.priority) },
  { id: "bytes", title: "bytes", width: "78px", number: true, sort: (a) => a.bytes, cell: (a) => bytes(a.bytes) },
  { id: "master", title: "master of its own", width: "minmax(120px, 1.2fr)", sort: (a) => a.master ?? undefined, cell: (a) => <Text text={a.master} most={48} /> },
];

/** Whether it still runs. */
const runs = (shuffle: Served) => shuffle.state === "running";

const written = (shuffle: Served) =>
  runs(shuffle) && shuffle.transferred !== undefined && shuffle.inputs ? shuffle.transferred / shuffle.inputs : undefined;

const losses = (shuffle: Served) => (shuffle.troubles?.length ?? 0) + (shuffle.more_troubles ?? 0);

const took = (shuffle: Served) => (shuffle.seconds ? sum(Object.values(shuffle.seconds)) : undefined);

const SHUFFLES: Column<Served>[] = [
  { id: "name", title: "shuffle", width: "minmax(130px, 1.6fr)", sort: (s) => s.name, cell: (s) => <Text text={s.name} most={60} /> },
  { id: "application", title: "application", width: "74px", sort: (s) => s.application, cell: (s) => <Number_ of={s.application} /> },
  { id: "state", title: "state", width: "84px", sort: (s) => s.state, cell: (s) => (runs(s) ? `● ${s.phase ?? s.state}` : s.state === "failed" ? <em class="bad">✕ failed</em> : (s.state ?? DASH)) },
  { id: "written", title: "written", width: "76px", number: true, hint: "of its inputs", sort: written, cell: (s) => <Share share={written(s)} /> },
  { id: "bytes", title: "bytes", width: "72px", number: true, sort: (s) => s.bytes, cell: (s) => bytes(s.bytes) },
  { id: "partitions", title: "partitions", width: "66px", number: true, sort: (s) => s.partitions, cell: (s) => count(s.partitions) },
  { id: "largest", title: "largest", width: "72px", number: true, hint: "partition", sort: (s) => s.largest ?? undefined, cell: (s) => bytes(s.largest) },
  skewColumn("66px"),
  { id: "servers", title: "servers", width: "52px", number: true, sort: (s) => s.servers ?? undefined, cell: (s) => count(s.servers) },
  { id: "again", title: "again", width: "44px", number: true, hint: "inputs that were written again", sort: (s) => s.repeated, cell: (s) => count(s.repeated) },
  { id: "losses", title: "troubles", width: "58px", number: true, hint: "servers that were lost or slow, rows that were damaged", sort: losses, cell: (s) => (losses(s) > 0 ? <em class="bad">✕ {count(losses(s))}</em> : count(losses(s))) },
  { id: "took", title: "took", width: "66px", number: true, sort: took, cell: (s) => seconds(took(s)) },
];

const idOf = (shuffle: Served) => `${shuffle.application} ${shuffle.name} ${shuffle.began}`;

function ChosenShuffle({ shuffle }: { shuffle: Served }) {
  return (
    <section class="chosen">
      <button type="button" class="close" aria-label="close" onClick={() => set({ shuffle: undefined })}>
        ✕
      </button>
      <h2>
        <Text text={shuffle.name} most={120} />
      </h2>
      <dl class="facts">
        <Fact name="began">{clock(shuffle.began)}</Fact>
        <Fact name="client">
          <Text text={shuffle.client} most={40} />
        </Fact>
        <Fact name="stages">
          <Text text={shuffle.stages} most={40} />
        </Fact>
        <Fact name="inputs · copies">
          {count(shuffle.inputs)} · {count(shuffle.copies)}
        </Fact>
        <Fact name="rows">{count(shuffle.rows)}</Fact>
        <Fact name="spilled">{bytes(shuffle.spilled_bytes)}</Fact>
        {Object.entries(shuffle.seconds ?? {}).map(([phase, time]) => (
          <Fact key={phase} name={phase}>
            {seconds(time)}
          </Fact>
        ))}
        {runs(shuffle) && (
          <>
            <Fact name="parts with fewer copies" bad={(shuffle.groups_with_fewer_copies ?? 0) > 0}>
              {count(shuffle.groups_with_fewer_copies)}
            </Fact>
            <Fact name="inputs to run again" bad={(shuffle.maps_to_run_again ?? 0) > 0}>
              {count(shuffle.maps_to_run_again)}
            </Fact>
          </>
        )}
      </dl>
      {shuffle.failure && <p class="note">failed: {shorten(shuffle.failure, 400)}</p>}
      {losses(shuffle) > 0 && (
        <ul class="happenings">
          {(shuffle.troubles ?? []).map((trouble, n) => (
            <li key={n}>
              <time>{clock(trouble.time)}</time>
              <div>{shorten(trouble.what, 200)}</div>
            </li>
          ))}
          {losses(shuffle) > (shuffle.troubles?.length ?? 0) && <li class="dim">and {count(losses(shuffle) - (shuffle.troubles?.length ?? 0))} more</li>}
        </ul>
      )}
    </section>
  );
}

function OfMaster({ told }: { told: Master }) {
  const { with: settings } = route.value;
  const servers = told.servers ?? [];
  const shuffles = [...(told.running ?? []), ...(told.ended ?? [])];
  const chosen = shuffles.find((shuffle) => idOf(shuffle) === settings.get("shuffle"));
  const full = servers.filter((server) => server.full).length;
  const troubled = sum((told.running ?? []).map((shuffle) => shuffle.groups_with_fewer_copies)) ?? 0;
  return (
    <div class="service">
      <dl class="facts strip">
        <Fact name="servers" bad={servers.length === 0}>
          {count(servers.length + (told.more_servers ?? 0))}
          {full > 0 && <small> ✕ {full} full</small>}
        </Fact>
        <Fact name="held">{bytes(sum(servers.map((server) => server.held_bytes)))}</Fact>
        <Fact name="free">{bytes(sum(servers.map((server) => server.free_bytes)))}</Fact>
        <Fact name="takes">{perSecond(sum(servers.map((server) => server.rate)))}</Fact>
        <Fact name="shuffles run">{count((told.running?.length ?? 0) + (told.more_running ?? 0))}</Fact>
        <Fact name="parts with fewer copies" bad={troubled > 0}>
          {count(troubled)}
        </Fact>
        <Fact name="applications">{count((told.applications?.length ?? 0) + (told.more_applications ?? 0))}</Fact>
        <Fact name="processes">{count(told.clients)}</Fact>
        {told.registry && (
          <Fact name="registry" bad={told.registry.current === false}>
            <Text text={told.registry.url} most={40} />
            {told.registry.current === false && <small> ✕ {shorten(told.registry.why ?? "away", 60)}</small>}
          </Fact>
        )}
      </dl>
      <Panel title="Servers">
        {servers.length === 0 ? (
          <Empty>No server has joined.</Empty>
        ) : (
          <Table label="Servers" rows={servers} columns={SERVERS} id={(row) => row.id} most={MOST_ROWS} sort={settings.get("servers") ?? "name"} onSort={(sort) => set({ servers: sort })} />
        )}
        {(told.more_servers ?? 0) > 0 && <p class="note">{count(told.more_servers)} servers are left out</p>}
      </Panel>
      <Panel title="Shuffles">
        {chosen && <ChosenShuffle shuffle={chosen} />}
        {shuffles.length === 0 ? (
          <Empty>No shuffle has begun.</Empty>
        ) : (
          <Table
            label="Shuffles"
            rows={shuffles}
            columns={SHUFFLES}
            id={idOf}
            most={MOST_ROWS}
            sort={settings.get("sort") ?? undefined}
            onSort={(sort) => set({ sort })}
            onRow={(row) => set({ shuffle: row === chosen ? undefined : idOf(row) })}
            chosen={chosen && idOf(chosen)}
          />
        )}
        <p class="note">
          {(told.more_running ?? 0) > 0 && <>{count(told.more_running)} that run are left out. </>}
          Those of applications with a master of their own are here when they have ended.
        </p>
      </Panel>
      <Panel title="Applications">
        {(told.applications ?? []).length === 0 ? (
          <Empty>No application is connected.</Empty>
        ) : (
          <Table label="Applications" rows={told.applications ?? []} columns={APPLICATIONS} id={(row) => row.application} most={MOST_ROWS} sort={settings.get("applications") ?? undefined} onSort={(sort) => set({ applications: sort })} />
        )}
        {(told.more_applications ?? 0) > 0 && <p class="note">{count(told.more_applications)} applications are left out</p>}
      </Panel>
    </div>
  );
}

const DEVICES: Column<Device>[] = [
  { id: "directories", title: "disk", width: "minmax(140px, 1.6fr)", sort: (d) => d.directories?.[0], cell: (d) => <Text text={d.directories?.join(", ")} most={80} /> },
  {
    id: "status",
    title: "status",
    width: "minmax(110px, 1fr)",
    cell: (d) => (
      <>
        {!d.full && !d.slow && !d.throttling && "● well"}
        <Yes when={d.full} sign="✕">full</Yes>
        <Yes when={d.slow} sign="▲">slow</Yes>
        <Yes when={d.throttling} sign="‖">throttled</Yes>
      </>
    ),
  },
  { id: "read", title: "reads", width: "92px", number: true, sort: (d) => d.read_bytes_per_second, cell: (d) => perSecond(d.read_bytes_per_second) },
  { id: "written", title: "writes", width: "92px", number: true, sort: (d) => d.write_bytes_per_second, cell: (d) => perSecond(d.write_bytes_per_second) },
  { id: "latency", title: "a read takes", width: "86px", number: true, sort: (d) => d.read_latency_seconds, cell: (d) => seconds(d.read_latency_seconds) },
  { id: "waiting", title: "waiting", width: "58px", number: true, sort: (d) => d.waiting, cell: (d) => count(d.waiting) },
  { id: "failures", title: "failures", width: "60px", number: true, sort: (d) => d.failures, cell: (d) => ((d.failures ?? 0) > 0 ? <em class="bad">✕ {count(d.failures)}</em> : count(d.failures)) },
];

interface Given {
  application: string;
  requests: number;
  bytes: number;
  waiting: number;
  seconds: number;
}

const GIVEN: Column<Given>[] = [
  { id: "application", title: "application", width: "minmax(100px, 1fr)", sort: (g) => g.application, cell: (g) => <Number_ of={g.application} /> },
  { id: "requests", title: "requests", width: "76px", number: true, sort: (g) => g.requests, cell: (g) => count(g.requests) },
  { id: "bytes", title: "bytes", width: "84px", number: true, sort: (g) => g.bytes, cell: (g) => bytes(g.bytes) },
  { id: "seconds", title: "time of disks", width: "90px", number: true, sort: (g) => g.seconds, cell: (g) => seconds(g.seconds) },
  { id: "waiting", title: "waiting", width: "58px", number: true, sort: (g) => g.waiting, cell: (g) => count(g.waiting) },
];

/** What the disks of a server gave each application. */
function given(devices: Device[]): Given[] {
  const all = new Map<string, Given>();
  for (const { applications = [] } of devices) {
    for (const one of applications) {
      const name = String(one.application);
      const row = all.get(name) ?? { application: name, requests: 0, bytes: 0, waiting: 0, seconds: 0 };
      row.requests += one.requests ?? 0;
      row.bytes += one.bytes ?? 0;
      row.waiting += one.waiting ?? 0;
      row.seconds += (one.cost_microseconds ?? 0) / 1e6;
      all.set(name, row);
    }
  }
  return [...all.values()];
}

function OfServer({ told }: { told: Server }) {
  const { with: settings } = route.value;
  const counts = told.counts ?? {};
  const devices = told.devices ?? [];
  const served = given(devices);
  const [held, limit] = [counts["held_bytes"], told.memory_limit];
  return (
    <div class="service">
      {told.not_registered && (
        <p class="verdict bad">
          <b aria-hidden="true">✕</b> It is not registered: {shorten(told.not_registered, 300)}
        </p>
      )}
      <dl class="facts strip">
        <Fact name="server">
          <Text text={told.name} most={48} />
          {told.leaving && <small> ◐ leaves</small>}
        </Fact>
        <Fact name="rows in memory">
          {bytes(held)}
          {limit !== undefined && <small> of {bytes(limit)} of the process</small>}
        </Fact>
        <Fact name="on disks">{bytes(counts["disk_bytes"])}</Fact>
        <Fact name="in the remote store">{told.remote ? bytes(counts["remote_bytes"]) : DASH}</Fact>
        <Fact name="takes">{perSecond(counts["intake_bytes_per_second"])}</Fact>
        <Fact name="masters">{count(told.masters)}</Fact>
        <Fact name="fails with">
          <Text text={told.domain} most={32} />
        </Fact>
        <Fact name="registered at">
          <Text text={told.registry} most={48} />
        </Fact>
      </dl>
      <Panel title="Disks">
        {devices.length === 0 ? (
          <Empty>Nothing has been written.</Empty>
        ) : (
          <Table label="Disks" rows={devices} columns={DEVICES} id={(_, n) => n} most={MOST_ROWS} sort={settings.get("disks") ?? undefined} onSort={(sort) => set({ disks: sort })} />
        )}
      </Panel>
      <Panel title="Applications that its disks served">
        {served.length === 0 ? (
          <Empty>None.</Empty>
        ) : (
          <Table label="Applications" rows={served} columns={GIVEN} id={(row) => row.application} most={MOST_ROWS} sort={settings.get("applications") ?? "-bytes"} onSort={(sort) => set({ applications: sort })} />
        )}
      </Panel>
      <Panel title="Since it began">
        <dl class="facts">
          <Fact name="pushed to it">{bytes(counts["stored_bytes_total"])}</Fact>
          <Fact name="copied elsewhere">{bytes(counts["copied_bytes_total"])}</Fact>
          <Fact name="spilled">{bytes(counts["spilled_bytes_total"])}</Fact>
          <Fact name="loaded">{bytes(counts["loaded_bytes_total"])}</Fact>
          <Fact name="reads">{count(counts["reads_total"])}</Fact>
          <Fact name="reads that were throttled">{count(counts["throttled_reads_total"])}</Fact>
        </dl>
      </Panel>
    </div>
  );
}

export function Service() {
  const service = overview.value?.service;
  if (!service) return <Empty>This is no process of the shuffle service.</Empty>;
  return service.role === "master" ? <OfMaster told={service} /> : <OfServer told={service} />;
}
