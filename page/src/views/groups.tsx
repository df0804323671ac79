/** The groups of tasks as a graph, with their progress, and as a table. */

import { memo } from "preact/compat";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { COLOURS, look, parts } from "../colours";
import { bytes, count, decimal, moment, seconds, shorten } from "../format";
import { overview } from "../link";
import { BOX, draw } from "../parts/layers";
import { done, Empty, Fact, GroupName, inState, Legend, Panel, Progress, STATES } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { href, route, set } from "../route";
import type { Group } from "../types";

const left = (group: Group) => (group.waiting === undefined ? undefined : group.waiting + (group.ready ?? 0));

const COLUMNS: Column<Group>[] = [
  { id: "name", title: "group", width: "minmax(150px, 2fr)", sort: (g) => g.name, cell: (g) => <GroupName name={g.name} /> },
  { id: "progress", title: "progress", width: "minmax(90px, 1fr)", cell: (g) => <Progress group={g} /> },
  { id: "total", title: "tasks", width: "70px", number: true, sort: (g) => g.total, cell: (g) => count(g.total) },
  { id: "done", title: "done", width: "70px", number: true, sort: done, cell: (g) => count(done(g)) },
  { id: "waiting", title: "waiting", width: "66px", number: true, hint: "for their inputs, or their turn", sort: left, cell: (g) => count(left(g)) },
  { id: "assigned", title: "at workers", hint: "running, or about to", width: "72px", number: true, sort: (g) => g.assigned, cell: (g) => count(g.assigned) },
  {
    id: "failed",
    title: "failed",
    width: "58px",
    number: true,
    sort: (g) => inState(g, "failed"),
    cell: (g) => (inState(g, "failed") > 0 ? <em class="bad">✕ {count(inState(g, "failed"))}</em> : count(inState(g, "failed"))),
  },
  { id: "runs", title: "runs", width: "66px", number: true, hint: "with those that were repeated", sort: (g) => g.runs, cell: (g) => count(g.runs) },
  { id: "seconds", title: "computed", width: "84px", number: true, hint: "seconds of threads", sort: (g) => g.seconds, cell: (g) => seconds(g.seconds) },
  { id: "mean", title: "mean", width: "72px", number: true, sort: (g) => g.mean, cell: (g) => seconds(g.mean) },
  { id: "max", title: "longest", width: "72px", number: true, sort: (g) => g.max, cell: (g) => seconds(g.max) },
  { id: "fetch", title: "inputs", hint: "reading them", width: "76px", number: true, sort: (g) => g.fetch_seconds, cell: (g) => seconds(g.fetch_seconds) },
  { id: "bytes", title: "bytes", width: "80px", number: true, hint: "of the values", sort: (g) => g.bytes, cell: (g) => bytes(g.bytes) },
];

interface BoxProps {
  group: Group;
  x: number;
  y: number;
  on: boolean;
}

function same(a: BoxProps, b: BoxProps): boolean {
  return (
    a.x === b.x &&
    a.y === b.y &&
    a.on === b.on &&
    a.group.name === b.group.name &&
    STATES.every(([state]) => a.group[state] === b.group[state]) &&
    a.group.runs === b.group.runs &&
    a.group.mean === b.group.mean &&
    a.group.total === b.group.total
  );
}

const GroupBox = memo(({ group, x, y, on }: BoxProps) => {
  const [name] = parts(group.name);
  const { colour } = look(group.name);
  const total = group.total ?? 0;
  let left = 0;
  const wide = BOX.width - 20;
  return (
    <g
      class={`box ${on ? "on" : ""} ${inState(group, "failed") > 0 ? "bad" : ""}`}
      transform={`translate(${x} ${y})`}
      onClick={() => set({ group: on ? undefined : group.id })}
      onKeyDown={(event: KeyboardEvent) => {
        if (event.key === "Enter") set({ group: on ? undefined : group.id });
      }}
      tabIndex={0}
      role="button"
      aria-label={shorten(group.name, 100)}
    >
      <title>{shorten(group.name, 300)}</title>
      <rect class="ground" width={BOX.width} height={BOX.height} rx="4" />
      <rect width="4" height={BOX.height} rx="2" fill={COLOURS[colour]} />
      {/* It cuts off names of wide letters. */}
      <svg x="12" y="4" width={wide} height="20">
        <text y="14" class="title">
          {shorten(name, 27)}
        </text>
      </svg>
      <rect class="track" x="12" y="26" width={wide} height="6" />
      {total > 0 &&
        STATES.map(([state]) => {
          const long = (inState(group, state) / total) * wide;
          const from = left;
          left += long;
          return long > 0 && <rect key={state} class={`fill ${state}`} x={12 + from} y="26" width={long} height="6" />;
        })}
      <text x="12" y="45" class="small">
        {count(done(group))} / {count(group.total)}
        {inState(group, "failed") > 0 ? `  ✕ ${count(inState(group, "failed"))}` : ""}
      </text>
      <text x={BOX.width - 8} y="45" class="small end">
        {(group.assigned ?? 0) > 0 ? `${count(group.assigned)} at workers` : seconds(group.mean)}
      </text>
    </g>
  );
}, same);

const Edges = memo(
  ({ edges, at, chosen }: { edges: [number, number][]; at: Map<number, { x: number; y: number }>; chosen: number | undefined }) => (
    <g class="edges">
      {edges.map(([from, to]) => {
        const a = at.get(from)!;
        const b = at.get(to)!;
        const [x1, y1] = [a.x + BOX.width, a.y + BOX.height / 2];
        const [x2, y2] = [b.x, b.y + BOX.height / 2];
        const bend = Math.max(24, (x2 - x1) / 2);
        return (
          <path
            key={`${from} ${to}`}
            class={from === chosen || to === chosen ? "on" : ""}
            d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`}
          />
        );
      })}
    </g>
  ),
);

function Graph({ groups, chosen }: { groups: Group[]; chosen: number | undefined }) {
  const structure = groups.map((group) => `${group.id}:${group.inputs?.join() ?? ""}`).sort().join(" ");
  const drawing = useMemo(
    () =>
      draw(
        [...groups]
          .sort((a, b) => a.id - b.id)
          .map((group) => ({ id: group.id, inputs: group.inputs ?? [] })),
      ),
    [structure],
  );
  const box = useRef<HTMLDivElement>(null);
  const [fit, setFit] = useState(1);
  const [zoom, setZoom] = useState<number>();
  useLayoutEffect(() => {
    const element = box.current!;
    const measure = () =>
      setFit(Math.min(1, (element.clientWidth - 24) / drawing.width, Math.max(0.5, (element.clientHeight - 24) / drawing.height)));
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, [drawing]);
  const scale = zoom ?? Math.max(0.6, fit);
  return (
    <>
      <div class="graph-zoom choice" role="group" aria-label="Size of the graph">
        <button type="button" onClick={() => setZoom(Math.min(1.5, scale * 1.25))} aria-label="larger">
          +
        </button>
        <button type="button" onClick={() => setZoom(Math.max(0.12, scale / 1.25))} aria-label="smaller">
          −
        </button>
        <button type="button" aria-pressed={zoom === undefined} onClick={() => setZoom(undefined)}>
          fit
        </button>
      </div>
      <div class="graph" ref={box} tabIndex={0} role="region" aria-label="Graph of groups">
        <svg
          width={drawing.width * scale + 24}
          height={drawing.height * scale + 24}
          viewBox={`${-12 / scale} ${-12 / scale} ${drawing.width + 24 / scale} ${drawing.height + 24 / scale}`}
        >
          <Edges edges={drawing.edges} at={drawing.at} chosen={chosen} />
          {groups.map((group) => {
            const place = drawing.at.get(group.id);
            return place && <GroupBox key={group.id} group={group} x={place.x} y={place.y} on={group.id === chosen} />;
          })}
        </svg>
      </div>
    </>
  );
}

export function Groups() {
  const now = overview.value;
  const { with: settings } = route.value;
  const groups = now?.groups;
  if (groups === undefined) return <Empty>Groups are not recorded.</Empty>;
  if (groups.length === 0) return <Empty>No tasks yet.</Empty>;
  const chosen = settings.has("group") ? Number(settings.get("group")) : undefined;
  const group = groups.find((known) => known.id === chosen);
  return (
    <div class="column">
      <Panel title="Graph of groups" kind="graph-panel" more={<Legend states={STATES} />}>
        <Graph groups={groups} chosen={chosen} />
      </Panel>
      {group && (
        <Panel
          title={<GroupName name={group.name} most={120} />}
          more={
            <nav class="links">
              <a href={href("stream", { group: group.id, from: group.from, to: group.to })}>task stream</a>
              <a href={href("profile", { group: group.name })}>profile</a>
            </nav>
          }
        >
          <dl class="facts">
            <Fact name="tasks">{count(group.total)}</Fact>
            <Fact name="waiting">{count(group.waiting)}</Fact>
            <Fact name="queued">{count(group.ready)}</Fact>
            <Fact name="at workers">{count(group.assigned)}</Fact>
            <Fact name="in memory">{count(group.memory)}</Fact>
            <Fact name="released">{count(group.released)}</Fact>
            <Fact name="failed" bad={inState(group, "failed") > 0}>
              {count(inState(group, "failed"))}
            </Fact>
            <Fact name="runs">{count(group.runs)}</Fact>
            <Fact name="computed">{seconds(group.seconds)}</Fact>
            <Fact name="mean · median · longest">
              {seconds(group.mean)} · {seconds(group.median)} · {seconds(group.max)}
            </Fact>
            <Fact name="reading inputs">{seconds(group.fetch_seconds)}</Fact>
            <Fact name="bytes">{bytes(group.bytes)}</Fact>
            <Fact name="first · last">
              {moment(group.from, now?.began)} · {moment(group.to, now?.began)}
            </Fact>
            <Fact name="inputs · readers">
              {decimal(group.inputs?.length)} · {decimal(groups.filter((other) => other.inputs?.includes(group.id)).length)}
            </Fact>
          </dl>
        </Panel>
      )}
      <Panel title={`All ${count(groups.length)} groups`} more={now?.more_groups ? <span class="note">{count(now.more_groups)} older ones are left out</span> : undefined}>
        <Table
          label="Groups"
          rows={groups}
          columns={COLUMNS}
          id={(row) => row.id}
          sort={settings.get("sort") ?? "-seconds"}
          onSort={(sort) => set({ sort })}
          onRow={(row) => set({ group: row.id === chosen ? undefined : row.id })}
          chosen={chosen}
          most={18}
        />
      </Panel>
    </div>
  );
}
