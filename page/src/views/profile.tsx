/** Where the time of tasks goes: a flame graph of their stacks, callers above. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { dark, COLOURS, look, rgb, variable } from "../colours";
import { count, decimal, percent, shorten } from "../format";
import { overview, usePoll } from "../link";
import { Empty } from "../parts/small";
import { route, set } from "../route";
import type { Flame } from "../types";

const ROW = 20;
const FONT = "11.5px system-ui, sans-serif";

interface Frame {
  node: Flame;
  path: Flame[];
  depth: number;
  from: number;
  to: number;
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
    for (const child of [...(frame.node.children ?? [])].sort((a, b) => b.value - a.value)) {
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
  const box = useRef<HTMLDivElement>(null);
  const [wide, setWide] = useState(0);
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
      level = next.children ?? [];
    }
    return found;
  }, [root, focus]);
  const shown = useMemo(() => frames(root, path, 0.7 / Math.max(1, wide)), [root, path, wide]);
  const height = (Math.max(0, ...shown.map((frame) => frame.depth)) + 1) * ROW;
  const wanted = find.toLowerCase();
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWide(box.current?.clientWidth ?? 0));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = canvas.current!;
    const by = devicePixelRatio;
    element.width = Math.round(wide * by);
    element.height = Math.round(height * by);
    const pen = element.getContext("2d")!;
    pen.scale(by, by);
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
      if (event.key === "Escape") setFocus([]);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const told = under ?? undefined;
  const self = told && told.node.value - (told.node.children ?? []).reduce((sum, child) => sum + child.value, 0);
  return (
    <>
      <p class="note one-line">
        {told ? (
          <>
            <bdi>{shorten(told.node.name, 120)}</bdi>: {percent(told.node.value / (root.value || 1))} of all,{" "}
            {percent((self ?? 0) / (root.value || 1))} itself
          </>
        ) : path.length > 1 ? (
          <button type="button" onClick={() => setFocus([])}>
            all frames
          </button>
        ) : (
          `${decimal(root.value)} in all. Click a frame to see what it calls.`
        )}
      </p>
      <div class="flame" ref={box}>
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
  const group = settings.get("group");
  const path = group === null ? "sight/profile" : `sight/profile?group=${encodeURIComponent(group)}`;
  const { value, missing, error } = usePoll<Flame>(path, 2000).value;
  const find = settings.get("find") ?? "";
  const groups = overview.value?.groups ?? [];
  return (
    <div class="column whole tight">
      <div class="bar">
        <label>
          group{" "}
          <select value={group ?? ""} onChange={(event) => set({ group: event.currentTarget.value })}>
            <option value="">all</option>
            {groups.map((known) => (
              <option key={known.id} value={known.id}>
                {shorten(known.name, 60)}
              </option>
            ))}
          </select>
        </label>
        <input
          type="search"
          placeholder="function or file"
          aria-label="Find frames"
          value={find}
          onInput={(event) => set({ find: event.currentTarget.value })}
        />
        {groups.length >= 500 && <span class="note">{count(groups.length)} latest groups</span>}
      </div>
      {missing ? (
        <Empty>Profiles are not recorded{group === null ? "" : " of this group"}.</Empty>
      ) : value === undefined ? (
        <Empty>{error ? shorten(error, 200) : "Asking…"}</Empty>
      ) : (
        <Graph root={value} find={find} />
      )}
    </div>
  );
}
