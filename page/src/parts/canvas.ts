/** What views that draw on a canvas share. */

import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** The width of what a canvas is in, in CSS pixels, as it changes. */
export function useWidth(canvas: RefObject<HTMLCanvasElement | null>): number {
  const [wide, setWide] = useState(0);
  useLayoutEffect(() => {
    const element = canvas.current!.parentElement!;
    const observer = new ResizeObserver(() => setWide(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return wide;
}

/** Empties a canvas, of a size in CSS pixels. Returns what draws on it, in such pixels. */
export function penOn(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  const pen = canvas.getContext("2d")!;
  pen.scale(devicePixelRatio, devicePixelRatio);
  return pen;
}
