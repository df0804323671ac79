/** The answers of a report: a page that is one file holds them, so that it asks nobody. */

import { WORDS, type Lane } from "./stream/decode";
import type { Failures, Logs, Ns, Overview, Places, Span } from "./types";

/** What a report is of. */
export interface Report {
  /** Seconds since 1970. */
  made: number;
  code?: string;
}

interface Head {
  version: number;
  report: Report;
  /** By the path of the question. */
  answers: Record<string, unknown> & { "sight/overview": Overview };
  /** The bytes of each picture, which follow. */
  pictures: Record<string, number>;
  /** Of the longest spans all that is known, others have what their rectangles say. */
  spans: Span[];
}

interface Picture {
  from: Ns;
  to: Ns;
  lanes: Lane[];
  groups: Record<string, string>;
  count: number;
  exact: boolean;
  words: Uint32Array;
  floats: Float32Array;
}

interface Held extends Head {
  drawn: Map<string, Picture>;
}

const KINDS: Record<number, string> = { 0: "task", 1: "reading", 2: "fetch", 3: "spill", 4: "shuffle", 5: "cast", 6: "running", 15: "several" };

/** Where a report has what it holds: compressed, and as text. */
const element = document.getElementById("held");
/** Whether this page is a report. */
export const isReport = element !== null;

function picture(bytes: ArrayBuffer): Picture {
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as Picture;
  const begin = (4 + length + 3) & ~3;
  const words = new Uint32Array(bytes, begin, Math.floor((bytes.byteLength - begin) / 4 / WORDS) * WORDS);
  return { ...head, words, floats: new Float32Array(bytes, begin, words.length) };
}

async function open(): Promise<Held> {
  const packed = Uint8Array.from(atob(element!.textContent!.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = await new Response(stream).arrayBuffer();
  let at = 4 + new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, at - 4))) as Head;
  const drawn = new Map<string, Picture>();
  for (const [by, length] of Object.entries(head.pictures)) {
    drawn.set(by, picture(bytes.slice(at, at + length)));
    at += length;
  }
  return { ...head, drawn };
}

let opening: Promise<Held> | undefined;

function held(): Promise<Held> {
  return (opening ??= open());
}

/** What this report is of. */
export async function report(): Promise<Report> {
  return (await held()).report;
}

/** What of a picture is in a window: the same bytes as a server's answer. */
function cut(whole: Picture, asked: URLSearchParams): Uint8Array<ArrayBuffer> {
  const from = Number(asked.get("from"));
  const to = Math.max(Number(asked.get("to")), from + 1);
  const [group, worker] = [asked.get("group"), asked.get("worker")];
  const length = whole.to - whole.from;
  const found: number[] = [];
  const lanes = new Map<number, number>();
  let count = 0;
  let cutOff = false;
  for (let at = 0; at < whole.words.length; at += WORDS) {
    const begin = whole.from + whole.floats[at + 2]! * length;
    const end = begin + whole.floats[at + 3]! * length;
    if (end < from || begin > to) {
      cutOff = true;
      continue;
    }
    const lane = whole.words[at]!;
    if (group !== null && whole.words[at + 1] !== Number(group)) continue;
    if (worker !== null && whole.lanes[lane]?.worker !== Number(worker)) continue;
    if (!lanes.has(lane)) lanes.set(lane, lanes.size);
    if ((whole.words[at + 4]! & 0xffff) !== 1) count += whole.words[at + 4]! >>> 16;
    found.push(at);
  }
  const names = [...lanes.keys()].map((lane) => whole.lanes[lane]);
  const all = !cutOff && group === null && worker === null;
  const head = new TextEncoder().encode(
    JSON.stringify({ from, to, lanes: names, groups: whole.groups, count: all ? whole.count : count, exact: whole.exact }),
  );
  const begin = (4 + head.length + 3) & ~3;
  const bytes = new Uint8Array(begin + 4 * WORDS * found.length);
  new DataView(bytes.buffer).setUint32(0, head.length, true);
  bytes.set(head, 4);
  const words = new Uint32Array(bytes.buffer, begin);
  const floats = new Float32Array(bytes.buffer, begin);
  found.forEach((at, n) => {
    words.set(whole.words.subarray(at, at + WORDS), n * WORDS);
    words[n * WORDS] = lanes.get(whole.words[at]!)!;
    const start = (whole.from + whole.floats[at + 2]! * length - from) / (to - from);
    const end = start + (whole.floats[at + 3]! * length) / (to - from);
    floats[n * WORDS + 2] = Math.max(0, start);
    floats[n * WORDS + 3] = Math.min(1, end) - Math.max(0, start);
  });
  return bytes;
}

/** The span at a moment of a lane, as far as it is known. */
function span(all: Held, asked: URLSearchParams): Span | undefined {
  const [at, worker, lane] = ["at", "worker", "lane"].map((name) => Number(asked.get(name))) as [number, number, number];
  const within = Number(asked.get("within") ?? 1e6);
  const own = all.spans.filter((one) => one.worker_id === worker && one.lane === lane);
  // What is drawn says it to a part of the run.
  const near = own.find((one) => Math.abs((one.from! + one.to!) / 2 - at) <= 1e3 && one.to! - one.from! >= within);
  if (near) return near;
  const whole = all.drawn.get("worker");
  const row = whole?.lanes.findIndex((one) => one.worker === worker && one.lane === lane) ?? -1;
  if (whole === undefined || row < 0) return undefined;
  const length = whole.to - whole.from;
  for (let n = 0; n < whole.words.length; n += WORDS) {
    if (whole.words[n] !== row) continue;
    const from = whole.from + whole.floats[n + 2]! * length;
    const to = from + whole.floats[n + 3]! * length;
    if (at < from || at > to) continue;
    const inside = own.find((one) => one.from! <= at && one.to! >= at && one.to! - one.from! >= (to - from) * 0.9);
    if (inside) return inside;
    return {
      group: whole.groups[String(whole.words[n + 1])],
      kind: KINDS[whole.words[n + 4]! & 0xffff],
      worker: all.answers["sight/overview"].workers?.find(({ id }) => id === worker)?.name,
      worker_id: worker,
      lane,
      from,
      to,
    };
  }
  return undefined;
}

/** The least level of a line, by the words that are asked for. */
const LEVELS: Record<string, string[]> = {
  info: ["INFO", "WARNING", "ERROR", "CRITICAL"],
  warning: ["WARNING", "ERROR", "CRITICAL"],
  error: ["ERROR", "CRITICAL"],
};

/** The lines that are asked for. */
function logs(all: Logs, asked: URLSearchParams): Logs {
  const [worker, level] = [asked.get("worker"), LEVELS[asked.get("level") ?? ""]];
  const find = (asked.get("find") ?? "").toLowerCase();
  const [from, to] = [Number(asked.get("from") ?? 0), Number(asked.get("to") ?? Infinity)];
  const lines = (all.lines ?? []).filter(
    (line) =>
      (worker === null || line.worker_id === Number(worker)) &&
      (level === undefined || level.includes(line.level ?? "")) &&
      (line.time === undefined || (line.time >= from && line.time <= to)) &&
      (line.text ?? "").toLowerCase().includes(find),
  );
  return { ...all, lines };
}

/** The places of a group. Parts of it by worker and by time are not held. */
function profile(all: Places, asked: URLSearchParams): Places {
  const group = asked.get("group");
  if (group === null) return all;
  const nodes: [number, number, number][] = [];
  const at = new Map<number, number>();
  (all.nodes ?? []).forEach(([parent, name, time], place) => {
    const isTop = parent === 0 && all.names?.[name] === group;
    const caller = isTop ? -1 : at.get(parent);
    if (caller === undefined) return;
    at.set(place, nodes.length);
    nodes.push([caller, name, time]);
  });
  return { ...all, nodes };
}

/** The answer to a question, as a server would give it; `undefined`: a report has none. */
export async function answer(question: string): Promise<Response | undefined> {
  const all = await held();
  const [path = "", query] = question.split("?", 2);
  const asked = new URLSearchParams(query);
  if (path === "sight/spans") {
    const whole = all.drawn.get(asked.get("by") ?? "worker");
    return whole && new Response(cut(whole, asked));
  }
  if (path === "sight/span") {
    const found = span(all, asked);
    return found && Response.json(found);
  }
  if (path === "sight/task") {
    const spans = all.spans.filter(({ key }) => key !== undefined && key === asked.get("key"));
    const failures = (all.answers["sight/errors"] as Failures | undefined)?.errors ?? [];
    const failure = failures.find(({ key }) => key !== undefined && key === asked.get("key"));
    if (spans.length === 0 && failure === undefined) return undefined;
    const { text: error, traceback } = failure ?? {};
    return Response.json({ key: asked.get("key"), state: "forgotten", workers: [], story: [], spans, error, traceback });
  }
  if (path === "sight/logs" && path in all.answers) return Response.json(logs(all.answers[path] as Logs, asked));
  if (path === "sight/profile" && path in all.answers) return Response.json(profile(all.answers[path] as Places, asked));
  return path in all.answers ? Response.json(all.answers[path]) : undefined;
}
