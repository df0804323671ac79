/** What the server says about a window of time: lanes, and the rectangles that the pixels show. */

import type { Ns } from "../types";

export interface Lane {
  worker?: number;
  lane?: number;
  group?: number;
  name?: string;
}

/** Words of a rectangle: lane, group, start, length (both as shares of the window), kind and count. */
export const WORDS = 5;
export const SEVERAL = 15;
export const READING = 1;
/** It is not over. */
export const RUNNING = 6;
/** The first lane of a worker that is no thread; the others follow in the order of their kinds, from fetches on. */
export const OTHERS = 0x8000;
const FIRST_OTHER = 2;

export interface Picture {
  from: Ns;
  to: Ns;
  lanes: Lane[];
  groups: Map<number, string>;
  count: number | undefined;
  exact: boolean;
  words: Uint32Array;
  floats: Float32Array;
  /** The number of rectangles. */
  size: number;
  /** Where the rectangles of each lane begin, and at the end their number. */
  starts: Uint32Array;
  /** Lanes are groups, and counts say how many tasks ran at a time: this is the largest. Otherwise 0. */
  most: number;
}

interface Head {
  from: Ns;
  to: Ns;
  lanes?: Lane[];
  groups?: Record<string, string>;
  count?: number;
  exact?: boolean;
}

export function decode(buffer: ArrayBuffer, byGroup: boolean): Picture {
  if (buffer.byteLength < 4) throw new SyntaxError("an answer without its length");
  const length = new DataView(buffer).getUint32(0, true);
  if (4 + length > buffer.byteLength) throw new SyntaxError("an answer that is cut off");
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))) as Head;
  const begin = (4 + length + 3) & ~3;
  const size = Math.floor(Math.max(0, buffer.byteLength - begin) / (4 * WORDS));
  const words = new Uint32Array(buffer, Math.min(begin, buffer.byteLength & ~3), size * WORDS);
  const floats = new Float32Array(buffer, words.byteOffset, words.length);
  const lanes = head.lanes ?? [];
  const starts = new Uint32Array(lanes.length + 1).fill(size);
  let next = 0;
  for (let n = 0; n < size; n += 1) {
    const lane = words[n * WORDS]!;
    if (lane >= lanes.length || lane + 1 < next) throw new SyntaxError("rectangles are not in the order of lanes");
    while (next <= lane) starts[next++] = n;
  }
  // Several transfers are transfers.
  lanes.forEach(({ lane = 0 }, row) => {
    if (byGroup || lane < OTHERS) return;
    const kind = lane - OTHERS + FIRST_OTHER;
    for (let n = starts[row]!; n < starts[row + 1]!; n += 1) {
      const at = n * WORDS + 4;
      if ((words[at]! & 0xffff) === SEVERAL) words[at] = ((words[at]! & 0xffff0000) | kind) >>> 0;
    }
  });
  let most = 0;
  for (let n = 0; byGroup && n < size; n += 1) most = Math.max(most, words[n * WORDS + 4]! >>> 16);
  return {
    from: head.from,
    to: head.to,
    lanes,
    groups: new Map(Object.entries(head.groups ?? {}).map(([id, name]) => [Number(id), name])),
    count: head.count,
    exact: head.exact ?? false,
    words,
    floats,
    size,
    starts,
    most,
  };
}

export interface Rectangle {
  index: number;
  lane: number;
  group: number;
  from: Ns;
  to: Ns;
  kind: number;
  count: number;
}

export function rectangle(picture: Picture, index: number): Rectangle {
  const at = index * WORDS;
  const span = picture.to - picture.from;
  const start = picture.floats[at + 2]!;
  const what = picture.words[at + 4]!;
  return {
    index,
    lane: picture.words[at]!,
    group: picture.words[at + 1]!,
    from: picture.from + start * span,
    to: picture.from + (start + picture.floats[at + 3]!) * span,
    kind: what & 0xffff,
    count: what >>> 16,
  };
}

/** The rectangle of a lane at a moment, or within `reach` of it. Where several are, the shortest. */
export function find(picture: Picture, lane: number, at: Ns, reach: Ns, low: boolean): Rectangle | undefined {
  const span = picture.to - picture.from;
  if (!(span > 0) || lane < 0 || lane >= picture.lanes.length) return undefined;
  const x = (at - picture.from) / span;
  const near = reach / span;
  let best = -1;
  let score = Infinity;
  for (let n = picture.starts[lane]!; n < picture.starts[lane + 1]!; n += 1) {
    const start = picture.floats[n * WORDS + 2]!;
    if (start > x + near) break;
    const length = picture.floats[n * WORDS + 3]!;
    if (start + length < x - near) continue;
    const kind = picture.words[n * WORDS + 4]! & 0xffff;
    const away = Math.max(0, start - x, x - start - length);
    // Reading is drawn in the lower half.
    const other = (kind === READING) === low ? 0 : 1;
    const mark = other * 4 + away / (near || 1) + length * 1e-3;
    if (mark < score) {
      score = mark;
      best = n;
    }
  }
  return best < 0 ? undefined : rectangle(picture, best);
}
