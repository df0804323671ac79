/**
 * A layered drawing of a directed graph, from left to right: each node right of its inputs (Sugiyama, Tagawa and Toda,
 * 1981). Edges that would close a cycle are drawn, and ignored for the layers.
 */

export interface Node {
  id: number;
  inputs: readonly number[];
}

export interface Placed {
  x: number;
  y: number;
}

export interface Drawing {
  at: Map<number, Placed>;
  edges: [number, number][];
  width: number;
  height: number;
}

export const BOX = { width: 196, height: 52, across: 56, down: 14 };

/** The nodes by layer; those without edges come separately. */
function layers(nodes: readonly Node[], inputs: Map<number, number[]>): number[][] {
  const depth = new Map<number, number>();
  const open = new Set<number>();
  // Without recursion: chains may be long.
  for (const node of nodes) {
    const path = depth.has(node.id) ? [] : [{ id: node.id, next: 0 }];
    while (path.length > 0) {
      const top = path[path.length - 1]!;
      const from = inputs.get(top.id)!;
      open.add(top.id);
      if (top.next < from.length) {
        const input = from[top.next]!;
        if (open.has(input)) from.splice(top.next, 1);
        else if (depth.has(input)) top.next += 1;
        else path.push({ id: input, next: 0 });
      } else {
        depth.set(top.id, from.reduce((most, input) => Math.max(most, depth.get(input)! + 1), 0));
        open.delete(top.id);
        path.pop();
      }
    }
  }
  const found: number[][] = [];
  for (const node of nodes) (found[depth.get(node.id)!] ??= []).push(node.id);
  return found;
}

export function draw(nodes: readonly Node[]): Drawing {
  const known = new Set(nodes.map((node) => node.id));
  const edges: [number, number][] = [];
  const inputs = new Map<number, number[]>();
  const outputs = new Map<number, number[]>(nodes.map((node) => [node.id, []]));
  for (const node of nodes) {
    const from = [...new Set(node.inputs)].filter((input) => known.has(input) && input !== node.id);
    inputs.set(node.id, from);
    for (const input of from) {
      edges.push([input, node.id]);
      outputs.get(input)!.push(node.id);
    }
  }
  const alone = nodes.filter((node) => inputs.get(node.id)!.length + outputs.get(node.id)!.length === 0);
  const linked = nodes.filter((node) => !alone.includes(node));
  const found = layers(linked, inputs);
  order(found, inputs, outputs);
  const at = spread(found, inputs, outputs);
  let height = 0;
  for (const { y } of at.values()) height = Math.max(height, y + BOX.height);
  let width = found.length * (BOX.width + BOX.across) - (found.length > 0 ? BOX.across : 0);
  // Groups without inputs and readers stand in rows below.
  const columns = Math.max(4, found.length);
  const top = height > 0 ? height + BOX.across : 0;
  alone.forEach((node, n) => {
    const x = (n % columns) * (BOX.width + BOX.down);
    const y = top + Math.floor(n / columns) * (BOX.height + BOX.down);
    at.set(node.id, { x, y });
    width = Math.max(width, x + BOX.width);
    height = Math.max(height, y + BOX.height);
  });
  return { at, edges, width, height };
}

/** Fewer crossings: each layer by the middle of its neighbours, there and back. */
function order(found: number[][], inputs: Map<number, number[]>, outputs: Map<number, number[]>): void {
  const rank = new Map<number, number>();
  const number = (layer: number[]) => layer.forEach((id, n) => rank.set(id, n / Math.max(1, layer.length - 1)));
  found.forEach(number);
  for (let round = 0; round < 8; round += 1) {
    const down = round % 2 === 0;
    for (const layer of down ? found : [...found].reverse()) {
      const mean = new Map(
        layer.map((id) => {
          const near = (down ? inputs : outputs).get(id)!;
          const all = near.reduce((sum, other) => sum + rank.get(other)!, 0);
          return [id, near.length > 0 ? all / near.length : rank.get(id)!];
        }),
      );
      layer.sort((a, b) => mean.get(a)! - mean.get(b)!);
      number(layer);
    }
  }
}

/** Heights: each node as near to the middle of its neighbours as its layer's order allows. */
function spread(found: number[][], inputs: Map<number, number[]>, outputs: Map<number, number[]>): Map<number, Placed> {
  const step = BOX.height + BOX.down;
  const most = Math.max(0, ...found.map((layer) => layer.length));
  const at = new Map<number, Placed>();
  found.forEach((layer, column) => {
    const first = ((most - layer.length) / 2) * step;
    layer.forEach((id, n) => at.set(id, { x: column * (BOX.width + BOX.across), y: first + n * step }));
  });
  for (let round = 0; round < 6; round += 1) {
    const down = round % 2 === 0;
    for (const layer of down ? found : [...found].reverse()) {
      const wanted = layer.map((id) => {
        const near = (down ? inputs : outputs).get(id)!.map((other) => at.get(other)!.y);
        return near.length > 0 ? near.reduce((a, b) => a + b, 0) / near.length : at.get(id)!.y;
      });
      // Not above the one before; then the layer is moved as a whole to where it wants to be.
      const placed: number[] = [];
      wanted.forEach((y, n) => placed.push(n === 0 ? y : Math.max(y, placed[n - 1]! + step)));
      const shift = wanted.reduce((sum, y, n) => sum + y - placed[n]!, 0) / wanted.length;
      layer.forEach((id, n) => (at.get(id)!.y = placed[n]! + shift));
    }
  }
  const top = Math.min(...[...at.values()].map(({ y }) => y));
  for (const place of at.values()) place.y -= top;
  return at;
}
