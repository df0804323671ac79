/** Where the time of tasks goes: a flame graph of their stacks, callers above. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { dark, COLOURS, look, rgb, variable } from "../colours";
import { count, offset, percent, seconds, shorten } from "../format";
import { isReport } from "../held";
import { overview, usePoll } from "../link";
import { penOn, useWidth } from "../parts/canvas";
import { Empty, workerName, writing } from "../parts/small";
import { href, route, set } from "../route";
import type { Flame, Places } from "../types";

const ROW = 20;
const FONT = "11.5px system-ui, sans-serif";

interface Frame {
  node: Flame;
  path: Flame[];
  depth: number;
  from: number;
  to: number;
}

/** The tree of places. */
function tree(places: Places): Flame | undefined {
  const nodes: Flame[] = [];
  for (const [parent, name, value] of places.nodes ?? []) {
    const node = { name: places.names?.[name] ?? "?", value, children: [] };
    nodes[parent]?.children.push(node);
    nodes.push(node);
  }
  for (const node of nodes) node.children.sort((a, b) => b.value - a.value);
  return nodes[0];
}

/** The place beside the one that is in focus: what called it, what it called most, the next one of the same caller. */
function step(root: Flame, focus: string[], key: string): string[] {
  if (key === "ArrowUp") return focus.slice(0, -1);
  let [node, beside]: [Flame, Flame[]] = [root, [root]];
  for (const name of focus.slice(1)) {
    beside = node.children;
    node = beside.find((child) => child.name === name) ?? node;
  }
  if (focus.length === 0) return root.children.length > 0 ? [root.name, root.children[0]!.name] : focus;
  if (key === "ArrowDown") return node.children.length > 0 ? [...focus, node.children[0]!.name] : focus;
  const next = beside[beside.indexOf(node) + (key === "ArrowRight" ? 1 : -1)];
  return next === undefined ? focus : [...focus.slice(0, -1), next.name];
}

/** The frames under `focus` that are wider than a pixel, without recursion: stacks may be deep. */
function frames(root: Flame, focus: Flame[], least: number): Frame[] {
  const found: Frame[] = [];
  focus.forEach((node, depth) => found.push({ node, path: focus.slice(0, depth + 1), depth, from: 0, to: 1 }));
  const top = focus.at(-1) ?? root;
  if (focus.length === 0) found.push({ node: root, path: [root], depth: 0, from: 0, to: 1 });
  const open: Frame[] = [{ node: top, path: focus.length > 0 ? focus : [root], depth: Math.max(0, focus.length - 1), from: 0, to: 1 }];
  while (open.length > 0) {
    const frame = open.pop()!;
    let at = frame.from;
    const unit = (frame.to - frame.from) / (frame.node.value || 1);
    for (const child of frame.node.children) {
      const to = Math.min(frame.to, at + child.value * unit);
      if (to - at >= least) {
        const next = { node: child, path: [...frame.path, child], depth: frame.depth + 1, from: at, to };
        found.push(next);
        open.push(next);
      }
      at = to;
    }
  }
  return found;
}

function Graph({ root, find }: { root: Flame; find: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const wide = useWidth(canvas);
  // By names: each answer is a tree of its own.
  const [focus, setFocus] = useState<string[]>([]);
  const [under, setUnder] = useState<Frame>();
  const path = useMemo(() => {
    const found: Flame[] = [];
    let level: Flame[] = [root];
    for (const name of focus) {
      const next = level.find((node) => node.name === name);
      if (next === undefined) break;
      found.push(next);
      level = next.children;
    }
    return found;
  }, [root, focus]);
  const shown = useMemo(() => frames(root, path, 0.7 / Math.max(1, wide)), [root, path, wide]);
  const height = (Math.max(0, ...shown.map((frame) => frame.depth)) + 1) * ROW;
  const wanted = find.toLowerCase();
  useLayoutEffect(() => {
    const pen = penOn(canvas.current!, wide, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const ground = rgb(dark.value ? "#3a424c" : "#ffffff");
    const ink = variable("text");
    const accent = variable("accent");
    for (const frame of shown) {
      const x = frame.from * wide;
      const long = (frame.to - frame.from) * wide;
      const y = frame.depth * ROW;
      const hit = wanted !== "" && frame.node.name.toLowerCase().includes(wanted);
      const colour = rgb(COLOURS[look(frame.node.name).colour]!);
      const mixed = colour.map((value, n) => Math.round(value * 0.36 + ground[n]! * 0.64));
      pen.globalAlpha = wanted !== "" && !hit ? 0.35 : frame.depth < path.length - 1 ? 0.55 : 1;
      pen.fillStyle = `rgb(${mixed.join(" ")})`;
      pen.fillRect(x, y, Math.max(1, long - 1), ROW - 1);
      if (hit && long > 2) {
        pen.strokeStyle = accent;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, long - 3, ROW - 3);
      }
      if (long > 34) {
        pen.fillStyle = ink;
        const text = shorten(frame.node.name, Math.floor((long - 8) / 5.8));
        // Letters differ in width.
        pen.save();
        pen.beginPath();
        pen.rect(x, y, long - 3, ROW);
        pen.clip();
        pen.fillText(text, x + 5, y + ROW / 2);
        pen.restore();
      }
      pen.globalAlpha = 1;
    }
    if (under) {
      pen.strokeStyle = ink;
      pen.lineWidth = 1;
      pen.strokeRect(under.from * wide + 0.5, under.depth * ROW + 0.5, Math.max(1, (under.to - under.from) * wide - 2), ROW - 2);
    }
  });
  const at = (event: MouseEvent) => {
    const place = canvas.current!.getBoundingClientRect();
    const x = (event.clientX - place.left) / wide;
    const depth = Math.floor((event.clientY - place.top) / ROW);
    return shown.find((frame) => frame.depth === depth && frame.from <= x && x < frame.to);
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (writing(event) || !/^(Escape|Arrow(Up|Down|Left|Right))$/.test(event.key)) return;
      if (event.key === "Escape") return setFocus([]);
      event.preventDefault();
      setFocus((now) => step(root, now, event.key));
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [root]);
  const told = under ?? undefined;
  const shownNode = told?.node ?? path.at(-1);
  const self = shownNode && Math.max(0, shownNode.value - shownNode.children.reduce((sum, child) => sum + child.value, 0));
  return (
    <>
      <p class="note one-line">
        {shownNode ? (
          <>
            <bdi>{shorten(shownNode.name, 120)}</bdi>: {seconds(shownNode.value)}, {percent(shownNode.value / (root.value || 1))} of all;{" "}
            {seconds(self)} in itself{" "}
            {!told && (
              <button type="button" onClick={() => setFocus([])}>
                all
              </button>
            )}
          </>
        ) : (
          `${seconds(root.value)} of threads. Click what you want to see more of, or use the arrows; Esc shows all.`
        )}
      </p>
      <div class="flame">
        <canvas
          ref={canvas}
          style={{ width: `${wide}px`, height: `${height}px` }}
          role="img"
          aria-label="Flame graph"
          onMouseMove={(event) => setUnder(at(event))}
          onMouseLeave={() => setUnder(undefined)}
          onClick={(event) => {
            const frame = at(event);
            if (frame) setFocus(frame.path.map((node) => node.name));
          }}
        />
      </div>
    </>
  );
}

export function Profile() {
  const { with: settings } = route.value;
  // A report holds no parts by worker and by time.
  const [group, worker, from, to] = ["group", "worker", "from", "to"].map((name) =>
    isReport && name !== "group" ? "" : (settings.get(name) ?? ""),
  );
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ group, worker, from, to })) if (value) query.set(name, value);
  const { value, missing, error } = usePoll<Places>(`sight/profile${query.size > 0 ? `?${query}` : ""}`, 2000).value;
  const root = useMemo(() => value && tree(value), [value]);
  const find = settings.get("find") ?? "";
  const groups = overview.value?.groups ?? [];
  const workers = overview.value?.workers ?? [];
  const known = groups.find(({ name }) => name === group);
  return (
    <div class="column whole tight">
      <div class="bar">
        <label>
          group{" "}
          <select value={group} onChange={(event) => set({ group: event.currentTarget.value })}>
            <option value="">all</option>
            {group && known === undefined && <option value={group}>{shorten(group, 60)}</option>}
            {groups.map(({ id, name }) => (
              <option key={id} value={name}>
                {shorten(name, 60)}
              </option>
            ))}
          </select>
        </label>
        {!isReport && (
          <label>
            worker{" "}
            <select value={worker} onChange={(event) => set({ worker: event.currentTarget.value })}>
              <option value="">all</option>
              {workers.map((one) => (
                <option key={one.id} value={one.id}>
                  {workerName(one)}
                </option>
              ))}
            </select>
          </label>
        )}
        <input
          type="search"
          placeholder="function or file"
          aria-label="Find places"
          value={find}
          onInput={(event) => set({ find: event.currentTarget.value })}
        />
        {(from || to) && (
          <button type="button" onClick={() => set({ from: undefined, to: undefined })}>
            {from && offset(Number(from), 1e8)} … {to && offset(Number(to), 1e8)} ✕
          </button>
        )}
        <span class="push" />
        {known && (
          <nav class="links">
            <a href={href("groups", { group: known.id })}>group</a>
          </nav>
        )}
      </div>
      {missing ? (
        <Empty>Profiles are not recorded.</Empty>
      ) : value === undefined ? (
        <Empty>{error ? shorten(error, 200) : "Asking…"}</Empty>
      ) : root === undefined ? (
        <Empty>No task was seen while it ran: threads are looked at 20 times a second, and what they did comes every 5 s.</Empty>
      ) : (
        <Graph root={root} find={find} />
      )}
      {(value?.more ?? 0) > 0 && <p class="note">{count(value?.more)} smaller places are left out.</p>}
    </div>
  );
}
