/**
 * The drawing of the task stream: a canvas of rectangles under one of text, with what mouse, fingers and keys do there.
 * It knows a window of time and draws the last picture that it was given into it, also one of another window.
 */

import { COLOURS, dark, kindName, look, parts, rgb, variable } from "../colours";
import { nanoseconds, offset, shorten } from "../format";
import type { Ns } from "../types";
import { find, type Lane, READING, RUNNING, SEVERAL, WORDS, type Picture, type Rectangle } from "./decode";
import { plainPainter } from "./draw_2d";
import { glPainter, type Painter } from "./draw_gl";

export interface Window {
  from: Ns;
  to: Ns;
}

export interface Listener {
  /** The user has moved the window. */
  moved(window: Window): void;
  chosen(found: Rectangle | undefined, picture: Picture): void;
}

const AXIS = 22;
const NARROW = 620;
/** A window is no shorter than this: floats of 32 bits cannot say more. */
const SHORTEST = 2_000;
const LANE_HEIGHTS = [2, 3, 5, 8, 12, 16, 20, 26, 34];

/** Pixels of a rectangle that is worth a name. */
const WORTH = 58;

const FONT = "11px system-ui, sans-serif";

export class Stage {
  window: Window = { from: 0, to: 1e9 };
  bounds: Window = { from: 0, to: 1e9 };
  private picture: Picture | undefined;
  private painter: Painter;
  private readonly rectangles: HTMLCanvasElement;
  private readonly over: HTMLCanvasElement;
  private readonly spacer: HTMLElement;
  private readonly tip: HTMLElement;
  private readonly observer: ResizeObserver;
  private readonly stopped = new AbortController();
  private frame = 0;
  private width = 0;
  private height = 0;
  private laneHeight = 0;
  private chosenHeight: number | undefined;
  private hover: { x: number; y: number } | undefined;
  private chosenAt: { lane: Lane | undefined; at: Ns } | undefined;
  private drag: { id: number; x: number; y: number; how: "zoom" | "pan"; now: number; window: Window; scroll: number } | undefined;
  private readonly fingers = new Map<number, { x: number; y: number }>();
  private pinch: { far: number; middle: number; window: Window } | undefined;

  constructor(
    private readonly box: HTMLElement,
    private readonly listener: Listener,
  ) {
    const add = <K extends keyof HTMLElementTagNameMap>(kind: K, name: string) => {
      const made = document.createElement(kind);
      made.className = name;
      box.append(made);
      return made;
    };
    const sticky = add("div", "sticky");
    this.rectangles = document.createElement("canvas");
    this.over = document.createElement("canvas");
    sticky.append(this.rectangles, this.over);
    this.spacer = add("div", "spacer");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    box.parentElement!.append(this.tip);
    this.painter = glPainter(this.rectangles) ?? plainPainter(this.rectangles);
    this.rectangles.addEventListener("webglcontextlost", (event) => event.preventDefault());
    this.rectangles.addEventListener("webglcontextrestored", () => {
      this.painter = glPainter(this.rectangles) ?? this.painter;
      if (this.picture) this.painter.load(this.picture);
      this.redraw();
    });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    const { signal } = this.stopped;
    box.addEventListener("scroll", () => this.redraw(), { signal, passive: true });
    box.addEventListener("wheel", (event) => this.onWheel(event), { signal, passive: false });
    box.addEventListener("pointerdown", (event) => this.onDown(event), { signal });
    box.addEventListener("pointermove", (event) => this.onMove(event), { signal });
    box.addEventListener("pointerup", (event) => this.onUp(event), { signal });
    box.addEventListener("pointercancel", (event) => this.onCancel(event), { signal });
    box.addEventListener("pointerleave", () => this.leave(), { signal });
    box.addEventListener("dblclick", (event) => this.zoom(4, this.timeAt(this.local(event).x)), { signal });
    this.resize();
  }

  close(): void {
    this.stopped.abort();
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
    this.painter.close();
    this.tip.remove();
    this.box.replaceChildren();
  }

  /** How it draws. */
  get by(): string {
    return this.painter.name;
  }

  /** Pixels of the device from the first to the last moment. */
  get pixels(): number {
    return Math.max(1, Math.round((this.width - this.gutter) * devicePixelRatio));
  }

  show(picture: Picture): void {
    this.picture = picture;
    this.painter.load(picture);
    this.arrange();
    this.redraw();
  }

  /** Sets the window, as the one who follows the end does. */
  put(window: Window): void {
    this.window = window;
    this.redraw();
  }

  choose(at: { lane: Lane | undefined; at: Ns } | undefined): void {
    this.chosenAt = at;
    this.redraw();
  }

  /** Higher or lower lanes. */
  stretch(by: 1 | -1): void {
    const now = LANE_HEIGHTS.findIndex((height) => height >= this.laneHeight - 0.5);
    const next = Math.min(LANE_HEIGHTS.length - 1, Math.max(0, (now < 0 ? LANE_HEIGHTS.length - 1 : now) + by));
    this.chosenHeight = LANE_HEIGHTS[next];
    this.arrange();
    this.redraw();
  }

  zoom(factor: number, around = (this.window.from + this.window.to) / 2): void {
    const { from, to } = this.window;
    const all = this.bounds.to - this.bounds.from;
    const length = Math.min(Math.max((to - from) * factor, SHORTEST), Math.max(all * 1.1, SHORTEST));
    const share = (around - from) / (to - from);
    this.move({ from: around - share * length, to: around + (1 - share) * length });
  }

  pan(share: number): void {
    const by = (this.window.to - this.window.from) * share;
    this.move({ from: this.window.from + by, to: this.window.to + by });
  }

  whole(): void {
    this.move({ ...this.bounds });
  }

  private move(window: Window): void {
    const length = window.to - window.from;
    const slack = length * 0.5;
    const least = this.bounds.from - slack;
    const most = this.bounds.to + slack;
    const shift = window.from < least ? least - window.from : window.to > most ? most - window.to : 0;
    this.window = { from: window.from + shift, to: window.to + shift };
    this.listener.moved(this.window);
    this.redraw();
  }

  private get gutter(): number {
    return this.width < NARROW ? 62 : 132;
  }

  private resize(): void {
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    for (const canvas of [this.rectangles, this.over]) {
      canvas.width = Math.max(1, Math.round(this.width * devicePixelRatio));
      canvas.height = Math.max(1, Math.round(this.height * devicePixelRatio));
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${this.height}px`;
    }
    this.arrange();
    this.redraw();
  }

  private arrange(): void {
    const lanes = this.picture?.lanes.length ?? 0;
    const fits = (this.height - AXIS - 2) / Math.max(1, lanes);
    this.laneHeight = this.chosenHeight ?? Math.min(26, Math.max(3, Math.floor(fits)));
    const all = AXIS + lanes * this.laneHeight;
    this.spacer.style.height = `${Math.max(0, all - this.height)}px`;
  }

  redraw(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.draw());
  }

  private x(at: Ns): number {
    const { from, to } = this.window;
    return this.gutter + ((at - from) / (to - from)) * (this.width - this.gutter);
  }

  private timeAt(x: number): Ns {
    const { from, to } = this.window;
    return from + ((x - this.gutter) / (this.width - this.gutter)) * (to - from);
  }

  private draw(): void {
    this.frame = 0;
    const { picture } = this;
    const scale = devicePixelRatio;
    const pen = this.over.getContext("2d")!;
    const night = dark.peek();
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const top = AXIS - this.box.scrollTop;
    if (picture !== undefined) {
      this.painter.draw(picture, {
        width: this.rectangles.width,
        height: this.rectangles.height,
        left: this.x(picture.from) * scale,
        span: (this.x(picture.to) - this.x(picture.from)) * scale,
        laneHeight: this.laneHeight * scale,
        top: top * scale,
        scale,
        back: night ? [0.078, 0.09, 0.106] : [1, 1, 1],
      });
      this.drawLabels(pen, picture, top);
      this.drawGutter(pen, picture, top);
    }
    if (picture?.size === 0) {
      pen.font = "13px system-ui, sans-serif";
      pen.fillStyle = variable("dim");
      pen.fillText("Nothing was recorded here.", this.gutter + 16, AXIS + 28);
    }
    this.drawAxis(pen);
    this.drawMarks(pen, top);
    this.tell();
  }

  /** Names in the rectangles that have room for them. */
  private drawLabels(pen: CanvasRenderingContext2D, picture: Picture, top: number): void {
    if (this.laneHeight < 12) return;
    const first = Math.max(0, Math.floor((AXIS - top) / this.laneHeight));
    const last = Math.min(picture.lanes.length - 1, Math.floor((this.height - top) / this.laneHeight));
    const left = this.x(picture.from);
    const span = this.x(picture.to) - left;
    let labels = 0;
    pen.font = FONT;
    pen.textBaseline = "middle";
    for (let lane = first; lane <= last; lane += 1) {
      for (let n = picture.starts[lane]!; n < picture.starts[lane + 1]! && labels < 400; n += 1) {
        const wide = picture.floats[n * WORDS + 3]! * span;
        if (wide < WORTH) continue;
        const what = picture.words[n * WORDS + 4]!;
        const kind = what & 0xffff;
        if ((kind !== 0 && kind !== RUNNING) || picture.most > 0) continue;
        const begin = Math.max(this.gutter, left + picture.floats[n * WORDS + 2]! * span);
        const end = Math.min(this.width, left + picture.floats[n * WORDS + 2]! * span + wide);
        const name = picture.groups.get(picture.words[n * WORDS + 1]!);
        if (name === undefined || end - begin < WORTH) continue;
        const text = shorten(parts(name)[0], Math.floor((end - begin - 8) / 6.2));
        const y = top + (lane + 0.5) * this.laneHeight;
        const long = pen.measureText(text).width;
        if (long > end - begin - 6) continue;
        const { colour, pattern } = look(name);
        const [r, g, b] = rgb(COLOURS[colour]!);
        // By Rec. 601: what reads on this ground.
        const light = 0.299 * r + 0.587 * g + 0.114 * b > 130;
        if (pattern > 0 || kind === RUNNING) {
          // Stripes would cut the letters.
          pen.fillStyle = COLOURS[colour]!;
          pen.fillRect(begin + 3, y - 6.5, long + 4, 13);
        }
        pen.fillStyle = light ? "#0b0d10" : "#ffffff";
        pen.fillText(text, begin + 5, y);
        labels += 1;
      }
    }
  }

  private drawGutter(pen: CanvasRenderingContext2D, picture: Picture, top: number): void {
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, this.gutter, this.height);
    pen.fillStyle = variable("panel");
    pen.fill();
    pen.clip();
    pen.font = FONT;
    pen.textBaseline = "middle";
    const line = variable("line");
    const text = variable("dim");
    const first = Math.max(0, Math.floor((AXIS - top) / this.laneHeight));
    const last = Math.min(picture.lanes.length - 1, Math.floor((this.height - top) / this.laneHeight));
    let free = -Infinity;
    for (let lane = first; lane <= last; lane += 1) {
      const told = picture.lanes[lane]!;
      const before = picture.lanes[lane - 1];
      const begins = before === undefined || before.worker !== told.worker || picture.most > 0;
      const y = top + lane * this.laneHeight;
      if (begins && lane > 0 && this.laneHeight >= 5) {
        pen.fillStyle = line;
        pen.fillRect(0, Math.round(y) - 0.5, this.gutter, 1);
      }
      const middle = y + Math.max(this.laneHeight, 12) / 2;
      const name = told.name ?? String(told.worker ?? told.lane);
      const cut = picture.most > 0 ? -1 : name.lastIndexOf(" · ");
      const most = this.gutter < 100 ? 9 : 20;
      // The worker once, its lanes if there is room.
      const each = this.laneHeight >= 12 && cut >= 0;
      if ((begins || lane === first || each) && middle - 6 >= free) {
        pen.fillStyle = text;
        if (begins || lane === first) {
          const own = each && this.gutter >= 100 ? name.slice(cut) : "";
          pen.fillText(`${shorten(cut < 0 ? parts(name)[0] : name.slice(0, cut), Math.max(5, most - own.length))}${own}`, 6, middle);
        } else pen.fillText(shorten(name.slice(cut + 3), most - 2), 18, middle);
        free = middle + 6;
      }
    }
    pen.fillStyle = line;
    pen.fillRect(this.gutter - 1, 0, 1, this.height);
    pen.restore();
  }

  private drawAxis(pen: CanvasRenderingContext2D): void {
    const { from, to } = this.window;
    pen.fillStyle = variable("panel");
    pen.fillRect(0, 0, this.width, AXIS);
    const wide = this.width - this.gutter;
    const rough = ((to - from) * 92) / wide;
    const power = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough)!;
    if (rough > 5e9) {
      const whole = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400];
      step = (whole.find((part) => part * 1e9 >= rough) ?? Math.ceil(rough / 86_400e9) * 86_400) * 1e9;
    }
    pen.font = FONT;
    pen.textBaseline = "middle";
    const dim = variable("dim");
    const line = variable("line");
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = this.x(at);
      pen.fillStyle = line;
      pen.fillRect(Math.round(x), AXIS - 5, 1, 5);
      pen.globalAlpha = 0.35;
      pen.fillRect(Math.round(x), AXIS, 1, this.height);
      pen.globalAlpha = 1;
      pen.fillStyle = dim;
      if (x < this.width - 46) pen.fillText(offset(at, step), x + 4, AXIS / 2);
    }
    pen.fillStyle = dim;
    pen.fillText(this.gutter < 100 ? nanoseconds(to - from) : `${nanoseconds(to - from)} shown`, 6, AXIS / 2);
    // Where the window is in the run.
    const all = this.bounds.to - this.bounds.from;
    if (all > 0) {
      const begin = Math.max(0, (from - this.bounds.from) / all);
      const end = Math.min(1, (to - this.bounds.from) / all);
      pen.fillStyle = line;
      pen.fillRect(this.gutter, 0, wide, 3);
      pen.fillStyle = variable("accent");
      pen.fillRect(this.gutter + begin * wide, 0, Math.max(3, (end - begin) * wide), 3);
    }
    pen.fillStyle = line;
    pen.fillRect(0, AXIS - 1, this.width, 1);
  }

  private drawMarks(pen: CanvasRenderingContext2D, top: number): void {
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, AXIS, this.width - this.gutter, this.height);
    pen.clip();
    const row = this.chosenRow();
    if (this.chosenAt && this.picture && row >= 0) {
      const found = find(this.picture, row, this.chosenAt.at, 0, false);
      const from = found ? this.x(found.from) : this.x(this.chosenAt.at) - 1;
      const to = found ? this.x(found.to) : from + 2;
      pen.strokeStyle = variable("text");
      pen.lineWidth = 2;
      pen.strokeRect(from - 1, top + row * this.laneHeight - 1, Math.max(2, to - from) + 2, this.laneHeight + 1);
    }
    const under = this.under();
    if (under && !this.drag) {
      pen.strokeStyle = variable("text");
      pen.lineWidth = 1;
      const from = this.x(under.from);
      pen.strokeRect(from - 0.5, top + under.lane * this.laneHeight - 0.5, Math.max(1, this.x(under.to) - from) + 1, this.laneHeight);
    }
    if (this.drag?.how === "zoom" && Math.abs(this.drag.now - this.drag.x) > 3) {
      pen.fillStyle = variable("accent");
      pen.globalAlpha = 0.2;
      pen.fillRect(Math.min(this.drag.x, this.drag.now), AXIS, Math.abs(this.drag.now - this.drag.x), this.height);
      pen.globalAlpha = 1;
      const long = Math.abs(this.timeAt(this.drag.now) - this.timeAt(this.drag.x));
      pen.fillStyle = variable("text");
      pen.font = FONT;
      pen.fillText(nanoseconds(long), Math.min(this.drag.x, this.drag.now) + 4, AXIS + 10);
    }
    pen.restore();
  }

  /** Where the lane of what is chosen is in this picture. */
  private chosenRow(): number {
    const lane = this.chosenAt?.lane;
    return this.picture?.lanes.findIndex((told) => told.worker === lane?.worker && told.lane === lane?.lane) ?? -1;
  }

  private under(at = this.hover): Rectangle | undefined {
    if (at === undefined || this.picture === undefined || at.x < this.gutter || at.y < AXIS) return undefined;
    const inside = (at.y - AXIS + this.box.scrollTop) / this.laneHeight;
    const lane = Math.floor(inside);
    const reach = ((this.window.to - this.window.from) / Math.max(1, this.width - this.gutter)) * 2;
    return find(this.picture, lane, this.timeAt(at.x), reach, inside - lane > 0.58);
  }

  /** What is under the mouse. */
  private tell(): void {
    const found = this.drag ? undefined : this.under();
    if (found === undefined || this.picture === undefined || this.hover === undefined) {
      this.tip.hidden = true;
      return;
    }
    const name = this.picture.groups.get(found.group);
    const lane = this.picture.lanes[found.lane];
    const several = found.count > 1 || found.kind === 15;
    const byGroup = this.picture.most > 0;
    const task = found.kind === 0 || found.kind === SEVERAL || found.kind === READING || found.kind === RUNNING;
    const lines = [
      name === undefined || !task ? kindName(found.kind) : shorten(name, 80),
      byGroup ? `up to ${found.count} at a time, for ${nanoseconds(found.to - found.from)}` : several
        ? `${found.count >= 65_535 ? "65,535 or more" : found.count} spans in ${nanoseconds(found.to - found.from)}`
        : `${kindName(found.kind)}, ${nanoseconds(found.to - found.from)}`,
      `${byGroup ? "" : `${shorten(lane?.name, 60)}, `}at ${offset(found.from, (this.window.to - this.window.from) / 1000)}`,
    ];
    this.tip.replaceChildren(
      ...lines.map((text, n) => {
        const line = document.createElement(n === 0 ? "strong" : "div");
        line.textContent = text;
        return line;
      }),
    );
    this.tip.hidden = false;
    const box = this.box.parentElement!.getBoundingClientRect();
    const own = this.box.getBoundingClientRect();
    const x = own.left - box.left + this.hover.x;
    const y = own.top - box.top + this.hover.y;
    const left = x + 16 + this.tip.offsetWidth > box.width ? x - 12 - this.tip.offsetWidth : x + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${y + 16 + this.tip.offsetHeight > box.height ? y - 8 - this.tip.offsetHeight : y + 14}px`;
  }

  private local(event: MouseEvent): { x: number; y: number } {
    const box = this.box.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private onWheel(event: WheelEvent): void {
    const at = this.local(event);
    // Over the names, the wheel scrolls.
    if (at.x < this.gutter) return;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      this.pan((sideways * unit) / (this.width - this.gutter));
    } else {
      this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY * unit)) * 0.0025), this.timeAt(at.x));
    }
  }

  private two(): [{ x: number }, { x: number }] {
    const all = [...this.fingers.values()];
    return [all[0]!, all[1]!];
  }

  private onDown(event: PointerEvent): void {
    const at = this.local(event);
    // On the bar for scrolling.
    if (at.x > this.box.clientWidth) return;
    this.fingers.set(event.pointerId, at);
    if (event.pointerType === "touch" && this.fingers.size === 2) {
      const [a, b] = this.two();
      this.pinch = { far: Math.max(10, Math.abs(a.x - b.x)), middle: this.timeAt((a.x + b.x) / 2), window: { ...this.window } };
      this.drag = undefined;
      return;
    }
    if (event.button !== 0 && event.button !== 1) return;
    const pans = event.pointerType === "touch" || event.shiftKey || event.button === 1 || at.y < AXIS || at.x < this.gutter;
    this.drag = {
      id: event.pointerId,
      ...at,
      how: pans ? "pan" : "zoom",
      now: at.x,
      window: { ...this.window },
      scroll: this.box.scrollTop,
    };
    if (event.pointerType !== "touch") this.box.setPointerCapture(event.pointerId);
  }

  private onMove(event: PointerEvent): void {
    const at = this.local(event);
    if (this.fingers.has(event.pointerId)) this.fingers.set(event.pointerId, at);
    if (this.pinch && this.fingers.size === 2) {
      const [a, b] = this.two();
      const length = ((this.pinch.window.to - this.pinch.window.from) * this.pinch.far) / Math.max(10, Math.abs(a.x - b.x));
      const share = ((a.x + b.x) / 2 - this.gutter) / (this.width - this.gutter);
      this.move({ from: this.pinch.middle - share * length, to: this.pinch.middle + (1 - share) * length });
      return;
    }
    this.hover = event.pointerType === "touch" ? undefined : at;
    if (this.drag?.id === event.pointerId) {
      this.drag.now = at.x;
      if (this.drag.how === "pan" && Math.abs(at.x - this.drag.x) + Math.abs(at.y - this.drag.y) > 3) {
        const { from, to } = this.drag.window;
        const by = ((this.drag.x - at.x) / (this.width - this.gutter)) * (to - from);
        if (event.pointerType !== "touch") this.box.scrollTop = this.drag.scroll + this.drag.y - at.y;
        this.move({ from: from + by, to: to + by });
      }
    }
    this.redraw();
  }

  private onUp(event: PointerEvent): void {
    const at = this.local(event);
    const { drag } = this;
    this.onCancel(event);
    if (drag === undefined || drag.id !== event.pointerId) return;
    if (Math.abs(at.x - drag.x) <= 3 && Math.abs(at.y - drag.y) <= 3) {
      if (this.picture) this.listener.chosen(this.under(at), this.picture);
    } else if (drag.how === "zoom") {
      const [a, b] = [this.timeAt(Math.max(this.gutter, Math.min(drag.x, at.x))), this.timeAt(Math.max(drag.x, at.x))];
      if (b - a >= SHORTEST && Math.abs(at.x - drag.x) > 5) this.move({ from: a, to: b });
    }
    this.redraw();
  }

  private onCancel(event: PointerEvent): void {
    this.fingers.delete(event.pointerId);
    if (this.fingers.size < 2) this.pinch = undefined;
    if (this.drag?.id === event.pointerId) this.drag = undefined;
    this.redraw();
  }

  private leave(): void {
    this.hover = undefined;
    this.redraw();
  }
}

