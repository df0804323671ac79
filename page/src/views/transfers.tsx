/** Who sends how much to whom: a matrix of the busiest pairs. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { dark, variable } from "../colours";
import { bytes, count, DASH, percent, perSecond, seconds, shorten } from "../format";
import { overview, usePoll } from "../link";
import { penOn, useWidth } from "../parts/canvas";
import { Empty, Panel, workerName } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { href, route, set } from "../route";
import type { Transfers as Told } from "../types";

interface Pair {
  from: number;
  to: number;
  bytes?: number;
  seconds?: number;
  waiting?: number;
  count?: number;
  failed?: number;
}

const SHOWN = {
  bytes: { title: "bytes", value: (pair: Pair) => pair.bytes, show: bytes },
  seconds: { title: "seconds", value: (pair: Pair) => pair.seconds, show: seconds },
  speed: { title: "bytes per second", value: (pair: Pair) => (pair.bytes && pair.seconds ? pair.bytes / pair.seconds : undefined), show: perSecond },
  waiting: {
    title: "share of waiting",
    value: (pair: Pair) =>
      pair.waiting !== undefined && pair.seconds !== undefined && pair.seconds + pair.waiting > 0
        ? pair.waiting / (pair.seconds + pair.waiting)
        : undefined,
    show: percent,
  },
} as const;

/** The server sums what all requests took. What is beyond the time in which any was under way, they waited. */
function behindOthers(all: number | undefined, some: number | undefined): number | undefined {
  return all === undefined || some === undefined ? undefined : Math.max(0, all - some);
}

type Kind = keyof typeof SHOWN;

/** From light to dark, so that it reads without hues: Viridis (van der Walt, Smith) at five places. */
const RAMP: [number, number, number][] = [
  [253, 231, 37],
  [94, 201, 98],
  [33, 145, 140],
  [59, 82, 139],
  [68, 1, 84],
];

function ramp(share: number, night: boolean): string {
  const at = Math.min(0.9999, Math.max(0, night ? 1 - share : share)) * (RAMP.length - 1);
  const low = RAMP[Math.floor(at)]!;
  const high = RAMP[Math.floor(at) + 1]!;
  const part = at - Math.floor(at);
  return `rgb(${low.map((value, n) => Math.round(value + (high[n]! - value) * part)).join(" ")})`;
}

/** Values have a range of many powers: their logarithms are shown, except of shares. */
function scaleOf(values: number[], kind: Kind): { share: (value: number) => number; least: number; most: number } {
  const some = values.filter((value) => value > 0);
  const most = Math.max(...some, 0);
  if (kind === "waiting") return { share: (value) => value, least: 0, most: 1 };
  const least = Math.max(Math.min(...some, most), most / 1e6);
  const wide = Math.log(most / least) || 1;
  return { share: (value) => (value <= 0 ? 0 : Math.max(0, Math.log(value / least)) / wide), least, most };
}

function Matrix({ pairs, size, names, kind }: { pairs: (Pair | undefined)[]; size: number; names: string[]; kind: Kind }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const wide = useWidth(canvas);
  const [under, setUnder] = useState<Pair>();
  const { value, show, title } = SHOWN[kind];
  const letters = Math.max(4, ...names.map((name) => name.length));
  const margin = Math.min(120, wide * 0.22, letters * 6.8 + 14);
  const cell = Math.max(2, Math.min(44, Math.floor((wide - margin) / Math.max(size, 1))));
  const height = margin + cell * size;
  const values = pairs.flatMap((pair) => (pair && value(pair) !== undefined ? [value(pair)!] : []));
  const scale = scaleOf(values, kind);
  const night = dark.value;
  useLayoutEffect(() => {
    const pen = penOn(canvas.current!, margin + cell * size, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const dim = variable("dim");
    const track = variable("track");
    pairs.forEach((pair, n) => {
      const x = margin + (n % size) * cell;
      const y = margin + Math.floor(n / size) * cell;
      const told = pair && value(pair);
      pen.fillStyle = told === undefined || (told === 0 && kind !== "waiting") ? track : ramp(scale.share(told), night);
      pen.fillRect(x, y, cell - (cell > 4 ? 1 : 0), cell - (cell > 4 ? 1 : 0));
    });
    if (under) {
      pen.strokeStyle = variable("text");
      pen.lineWidth = 2;
      pen.strokeRect(margin + under.to * cell - 1, margin + under.from * cell - 1, cell + 1, cell + 1);
    }
    const every = Math.ceil(13 / cell);
    pen.fillStyle = dim;
    names.forEach((name, n) => {
      if (n % every !== 0) return;
      const text = shorten(name, Math.max(5, Math.floor((margin - 6) / 6.4)));
      pen.textAlign = "right";
      pen.fillText(text, margin - 6, margin + (n + 0.5) * cell);
      pen.save();
      pen.translate(margin + (n + 0.5) * cell, margin - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(text, 0, 0);
      pen.restore();
    });
    
  });
  const at = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const to = Math.floor((event.clientX - box.left - margin) / cell);
    const from = Math.floor((event.clientY - box.top - margin) / cell);
    return to >= 0 && from >= 0 && to < size && from < size ? pairs[from * size + to] : undefined;
  };
  return (
    <>
      <p class="note one-line" aria-live="off">
        {under ? (
          <>
            <bdi>{shorten(names[under.from], 30)}</bdi> → <bdi>{shorten(names[under.to], 30)}</bdi>: {bytes(under.bytes)} in{" "}
            {count(under.count)} transfers, {seconds(under.seconds)}{under.waiting !== undefined && `, ${seconds(under.waiting)} waiting`}
            {under.failed ? `, ${count(under.failed)} failed` : ""}
          </>
        ) : (
          <span class="ramp">
            {kind === "waiting" ? percent(0) : show(scale.least)}
            {Array.from({ length: 24 }, (_, n) => (
              <i key={n} style={{ backgroundColor: ramp(n / 23, night) }} />
            ))}
            {kind === "waiting" ? percent(1) : show(scale.most)}
            {kind !== "waiting" && <span class="dim"> logarithmic</span>}
          </span>
        )}
      </p>
      <div class="matrix">
        <canvas
          ref={canvas}
          style={{ width: `${margin + cell * size}px`, height: `${height}px` }}
          role="img"
          aria-label={`${title} between ${size} workers; the table beside has the largest`}
          onMouseMove={(event) => setUnder(at(event))}
          onMouseLeave={() => setUnder(undefined)}
        />
      </div>
    </>
  );
}

export function Transfers() {
  const { value, missing, error } = usePoll<Told>("sight/transfers", 1000).value;
  const { with: settings } = route.value;
  const kind = (settings.get("show") ?? "bytes") in SHOWN ? ((settings.get("show") ?? "bytes") as Kind) : "bytes";
  if (missing) return <Empty>Transfers are not recorded here.</Empty>;
  if (value === undefined) return <Empty>{error ? shorten(error, 200) : "Asking…"}</Empty>;
  const size = value.workers.length;
  const known = new Map((overview.value?.workers ?? []).map((worker) => [String(worker.id), worker]));
  const names = value.workers.map((id, n) => shorten(value.names?.[n] ?? workerName(known.get(String(id)), id), 48));
  const pairs: (Pair | undefined)[] = [];
  for (let from = 0; from < size; from += 1) {
    for (let to = 0; to < size; to += 1) {
      const pair: Pair = {
        from,
        to,
        bytes: value.bytes?.[from]?.[to],
        seconds: value.seconds?.[from]?.[to],
        waiting: behindOthers(value.waiting_seconds?.[from]?.[to], value.seconds?.[from]?.[to]),
        count: value.count?.[from]?.[to],
        failed: value.failed?.[from]?.[to],
      };
      pairs.push(pair.bytes || pair.count || pair.failed ? pair : undefined);
    }
  }
  const some = pairs.filter((pair): pair is Pair => pair !== undefined);
  if (some.length === 0) return <Empty>No value has been moved between workers.</Empty>;
  const columns: Column<Pair>[] = [
    { id: "from", title: "from", width: "minmax(70px, 1fr)", sort: (p) => names[p.from], cell: (p) => <bdi>{names[p.from] ?? DASH}</bdi> },
    { id: "to", title: "to", width: "minmax(70px, 1fr)", sort: (p) => names[p.to], cell: (p) => <bdi>{names[p.to] ?? DASH}</bdi> },
    { id: "bytes", title: "bytes", width: "70px", number: true, sort: (p) => p.bytes, cell: (p) => bytes(p.bytes) },
    { id: "count", title: "number", width: "52px", number: true, sort: (p) => p.count, cell: (p) => count(p.count) },
    { id: "seconds", title: "time", width: "66px", number: true, sort: (p) => p.seconds, cell: (p) => seconds(p.seconds) },
    { id: "waiting", title: "waiting", width: "66px", number: true, sort: (p) => p.waiting, cell: (p) => seconds(p.waiting) },
    { id: "speed", title: "speed", width: "80px", number: true, sort: (p) => SHOWN.speed.value(p), cell: (p) => perSecond(SHOWN.speed.value(p)) },
  ];
  const kinds = (Object.keys(SHOWN) as Kind[]).filter((name) => name !== "waiting" || value.waiting_seconds !== undefined);
  return (
    <div class="column">
      <div class="bar">
        <span class="choice" role="group" aria-label="What is shown">
          {kinds.map((name) => (
            <button key={name} type="button" aria-pressed={name === kind} onClick={() => set({ show: name })}>
              {SHOWN[name].title}
            </button>
          ))}
        </span>
        <span class="note">
          {count(size)} workers{value.more ? `, the busiest; ${count(value.more)} others are left out` : ""}.{" "}
          {(value.beyond ?? 0) > 0 && `${count(value.beyond)} values (${bytes(value.beyond_bytes)}) of other pairs are not told apart. `}
          <a href={href("stream")}>task stream</a>
        </span>
      </div>
      <div class="two wide-left">
        <Panel title={`${SHOWN[kind].title[0]!.toUpperCase()}${SHOWN[kind].title.slice(1)} from (row) to (column)`}>
          <Matrix pairs={pairs} size={size} names={names} kind={kind} />
        </Panel>
        <Panel title="Pairs">
          <Table
            label="Pairs of workers"
            rows={some}
            columns={columns}
            id={(pair) => pair.from * size + pair.to}
            sort={settings.get("sort") ?? "-bytes"}
            onSort={(sort) => set({ sort })}
            most={22}
          />
        </Panel>
      </div>
    </div>
  );
}
