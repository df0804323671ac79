/** Draws rectangles with WebGL2: the server's bytes are the buffer of instances, and nothing is computed for each here. */

import { COLOURS, KINDS, look, NEUTRAL, rgb } from "../colours";
import type { Picture } from "./decode";

/** How a picture lies on the canvas, in pixels of the device. */
export interface Place {
  width: number;
  height: number;
  /** Left of the window of the picture, and its width. */
  left: number;
  span: number;
  laneHeight: number;
  /** Top of the first lane. */
  top: number;
  scale: number;
  back: [number, number, number];
}

export interface Painter {
  load(picture: Picture): void;
  draw(picture: Picture, place: Place): void;
  close(): void;
  name: string;
}

const WIDE = 1024;

const VERTEX = `#version 300 es
precision highp float;
precision highp int;
layout(location=0) in uint lane;
layout(location=1) in uint group;
layout(location=2) in vec2 part;
layout(location=3) in uint what;
uniform vec2 size;
uniform vec2 across;
uniform vec3 lanes;
uniform bool low;
// By which part of a lane a power of two is higher, where counts are heights; or 0.
uniform float rise;
uniform highp usampler2D looks;
flat out uint kind;
flat out uint seen;
flat out vec2 edges;
void main() {
  kind = what & 0xffffu;
  bool reading = kind == 1u;
  float x0 = floor(across.x + part.x * across.y + 0.5);
  float x1 = max(x0 + 1.0, floor(across.x + (part.x + part.y) * across.y + 0.5));
  float y0 = floor(lanes.y + float(lane) * lanes.x);
  float y1 = floor(lanes.y + float(lane + 1u) * lanes.x) - lanes.z;
  y1 = max(y1, y0 + 1.0);
  if (reading) y0 = floor(mix(y0, y1, 0.58));
  if (rise > 0.0) y0 = min(y1 - 1.0, floor(mix(y1, y0, rise * (log2(float(max(what >> 16u, 1u))) + 1.0))));
  int height = textureSize(looks, 0).y;
  seen = texelFetch(looks, ivec2(int(group % ${WIDE}u), int(group / ${WIDE}u) % height), 0).r;
  edges = vec2(x0, x1);
  vec2 at = vec2((gl_VertexID & 1) == 0 ? x0 : x1, (gl_VertexID & 2) == 0 ? y0 : y1);
  if (reading != low) at = vec2(-9.0);
  vec2 clip = at / size * 2.0 - 1.0;
  gl_Position = vec4(clip.x, -clip.y, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
precision highp int;
flat in uint kind;
flat in uint seen;
flat in vec2 edges;
uniform vec3 colours[${COLOURS.length + 1}];
uniform vec3 kinds[7];
uniform vec3 back;
uniform float scale;
uniform float tall;
out vec4 colour;
void main() {
  vec2 p = gl_FragCoord.xy / scale;
  float wide = (edges.y - edges.x) / scale;
  vec3 c;
  float mark = 0.0;
  if (kind == 0u || kind == 15u || kind > 5u) {
    c = colours[seen & 31u];
    uint pattern = seen >> 5u;
    if (wide >= 9.0 && tall >= 7.0) {
      if (pattern == 1u) mark = step(fract((p.x + p.y) / 7.0), 0.2);
      else if (pattern == 2u) mark = step(fract((p.x - p.y) / 7.0), 0.2);
      else if (pattern == 3u) mark = step(length(fract(p / 5.0) - 0.5), 0.24);
    }
    if (kind == 15u) c = mix(c, back, 0.25);
    if (kind == 6u) {
      c = mix(c, back, 0.4);
      mark = wide >= 5.0 ? step(fract((p.x - p.y) / 8.0), 0.5) : 0.0;
    }
  } else {
    c = kinds[kind];
    if (wide >= 5.0) {
      if (kind == 1u) mark = step(fract(p.x / 4.0), 0.4);
      else if (kind == 2u) mark = step(fract((p.x + p.y) / 4.0), 0.35);
      else if (kind == 3u) mark = step(fract(p.y / 3.0), 0.4);
      else if (kind == 4u) mark = step(fract((p.x - p.y) / 4.0), 0.35);
    }
  }
  c = mix(c, back, mark * 0.3);
  if (wide >= 3.0 && gl_FragCoord.x < edges.x + scale) c = mix(c, back, 0.55);
  colour = vec4(c, 1.0);
}`;

export function glPainter(canvas: HTMLCanvasElement): Painter | undefined {
  const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, depth: false, premultipliedAlpha: true });
  if (gl === null) return undefined;
  const program = gl.createProgram()!;
  for (const [kind, source] of [
    [gl.VERTEX_SHADER, VERTEX],
    [gl.FRAGMENT_SHADER, FRAGMENT],
  ] as const) {
    const shader = gl.createShader(kind)!;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return undefined;
  const where = (name: string) => gl.getUniformLocation(program, name);
  const uniforms = {
    size: where("size"),
    across: where("across"),
    lanes: where("lanes"),
    low: where("low"),
    rise: where("rise"),
    looks: where("looks"),
    colours: where("colours"),
    kinds: where("kinds"),
    back: where("back"),
    scale: where("scale"),
    tall: where("tall"),
  };
  const buffer = gl.createBuffer();
  const array = gl.createVertexArray();
  gl.bindVertexArray(array);
  gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
  for (const place of [0, 1, 2, 3]) {
    gl.enableVertexAttribArray(place);
    gl.vertexAttribDivisor(place, 1);
  }
  gl.vertexAttribIPointer(0, 1, gl.UNSIGNED_INT, 20, 0);
  gl.vertexAttribIPointer(1, 1, gl.UNSIGNED_INT, 20, 4);
  gl.vertexAttribPointer(2, 2, gl.FLOAT, false, 20, 8);
  gl.vertexAttribIPointer(3, 1, gl.UNSIGNED_INT, 20, 16);
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  for (const setting of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) {
    gl.texParameteri(gl.TEXTURE_2D, setting, gl.NEAREST);
  }
  gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
  const flat = (colours: readonly string[]) => new Float32Array(colours.flatMap((c) => rgb(c).map((v) => v / 255)));
  gl.useProgram(program);
  gl.uniform3fv(uniforms.colours, flat([...COLOURS, NEUTRAL]));
  gl.uniform3fv(uniforms.kinds, flat(KINDS.map((kind) => kind.colour || NEUTRAL)));
  gl.uniform1i(uniforms.looks, 0);
  return {
    name: "WebGL2",
    load(picture) {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, picture.words, gl.STREAM_DRAW);
      let most = 0;
      for (const id of picture.groups.keys()) most = Math.max(most, id);
      // Rows enough for the largest number; what is beyond 1024² groups shares looks.
      const rows = Math.min(1024, Math.floor(most / WIDE) + 1);
      const looks = new Uint8Array(WIDE * rows).fill(COLOURS.length);
      for (const [id, name] of picture.groups) {
        const { colour, pattern } = look(name);
        looks[id % looks.length] = colour | (pattern << 5);
      }
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.R8UI, WIDE, rows, 0, gl.RED_INTEGER, gl.UNSIGNED_BYTE, looks);
    },
    draw(picture, place) {
      gl.viewport(0, 0, place.width, place.height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT);
      if (picture.size === 0) return;
      gl.uniform2f(uniforms.size, place.width, place.height);
      gl.uniform2f(uniforms.across, place.left, place.span);
      gl.uniform3f(uniforms.lanes, place.laneHeight, place.top, place.laneHeight >= 4 * place.scale ? place.scale : 0);
      gl.uniform3f(uniforms.back, ...place.back);
      gl.uniform1f(uniforms.rise, picture.most > 0 ? 1 / (Math.log2(picture.most) + 1) : 0);
      gl.uniform1f(uniforms.scale, place.scale);
      gl.uniform1f(uniforms.tall, place.laneHeight / place.scale);
      for (const low of [0, 1]) {
        gl.uniform1i(uniforms.low, low);
        gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, picture.size);
      }
    },
    close() {
      gl.getExtension("WEBGL_lose_context")?.loseContext();
    },
  };
}
