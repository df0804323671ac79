/** The same rectangles where there is no WebGL2, without patterns in those that are small. */

import { COLOURS, KINDS, look, NEUTRAL } from "../colours";
import { READING, RUNNING, SEVERAL, WORDS } from "./decode";
import type { Painter } from "./draw_gl";

/** Stripes and dots as those of `draw_gl`, over a colour. */
function marks(context: CanvasRenderingContext2D, scale: number, back: string): (CanvasPattern | null)[] {
  return [1, 2, 3].map((pattern) => {
    const size = Math.round((pattern === 3 ? 5 : 7) * scale);
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const pen = tile.getContext("2d")!;
    pen.globalAlpha = 0.3;
    pen.fillStyle = pen.strokeStyle = back;
    pen.lineWidth = 1.2 * scale;
    if (pattern === 3) {
      pen.beginPath();
      pen.arc(size / 2, size / 2, size * 0.24, 0, 7);
      pen.fill();
    } else {
      pen.beginPath();
      for (const shift of [-size, 0, size]) {
        pen.moveTo(shift, pattern === 1 ? size : 0);
        pen.lineTo(shift + size, pattern === 1 ? 0 : size);
      }
      pen.stroke();
    }
    return context.createPattern(tile, "repeat");
  });
}

export function plainPainter(canvas: HTMLCanvasElement): Painter {
  const context = canvas.getContext("2d")!;
  let patterns: (CanvasPattern | null)[] = [];
  let made = "";
  return {
    name: "canvas",
    load() {
      // It reads the picture itself.
    },
    draw(picture, place) {
      const back = `rgb(${place.back.map((part) => Math.round(part * 255)).join(" ")})`;
      if (made !== `${back} ${place.scale}`) {
        patterns = marks(context, place.scale, back);
        made = `${back} ${place.scale}`;
      }
      context.clearRect(0, 0, place.width, place.height);
      const gap = place.laneHeight >= 4 * place.scale ? place.scale : 0;
      const first = Math.max(0, Math.floor(-place.top / place.laneHeight));
      const last = Math.min(picture.lanes.length - 1, Math.floor((place.height - place.top) / place.laneHeight));
      for (const low of [false, true]) {
        for (let lane = first; lane <= last; lane += 1) {
          const y0 = Math.floor(place.top + lane * place.laneHeight);
          const y1 = Math.max(y0 + 1, Math.floor(place.top + (lane + 1) * place.laneHeight) - gap);
          for (let n = picture.starts[lane]!; n < picture.starts[lane + 1]!; n += 1) {
            const at = n * WORDS;
            const kind = picture.words[at + 4]! & 0xffff;
            if ((kind === READING) !== low) continue;
            const tasks = kind === 0 || kind === SEVERAL || kind === RUNNING;
            const many = Math.max(1, picture.words[at + 4]! >>> 16);
            const raised = picture.most > 0 ? (Math.log2(many) + 1) / (Math.log2(picture.most) + 1) : 1;
            const top = low ? Math.floor(y0 + (y1 - y0) * 0.58) : Math.min(y1 - 1, Math.floor(y1 - (y1 - y0) * raised));
            const left = Math.floor(place.left + picture.floats[at + 2]! * place.span + 0.5);
            const right = Math.floor(place.left + (picture.floats[at + 2]! + picture.floats[at + 3]!) * place.span + 0.5);
            const wide = Math.max(1, right - left);
            if (left > place.width || left + wide < 0) continue;
            const name = picture.groups.get(picture.words[at + 1]!);
            const seen = name === undefined ? undefined : look(name);
            context.globalAlpha = kind === SEVERAL ? 0.75 : kind === RUNNING ? 0.6 : 1;
            context.fillStyle = !tasks
              ? (KINDS[kind]?.colour ?? NEUTRAL)
              : seen === undefined
                ? NEUTRAL
                : COLOURS[seen.colour]!;
            context.fillRect(left, top, wide, y1 - top);
            context.globalAlpha = 1;
            const pattern = kind === RUNNING ? patterns[1] : !tasks || seen === undefined ? null : patterns[seen.pattern - 1];
            if (pattern && wide >= 9 * place.scale && place.laneHeight >= 7 * place.scale) {
              context.fillStyle = pattern;
              context.fillRect(left, top, wide, y1 - top);
            }
            if (wide >= 3 * place.scale) {
              context.globalAlpha = 0.55;
              context.fillStyle = back;
              context.fillRect(left, top, place.scale, y1 - top);
              context.globalAlpha = 1;
            }
          }
        }
      }
    },
    close() {
      // Nothing is held.
    },
  };
}
