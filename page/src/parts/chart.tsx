/** Series over time, drawn by uPlot. */

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { dark, variable } from "../colours";
import { DASH } from "../format";

export interface Line {
  name: string;
  values: (number | null | undefined)[];
  colour: string;
  /** Lines are told apart by more than their hue. */
  dash?: number[];
  fill?: boolean;
  /** Values are missing here and there: the line goes on. */
  gaps?: boolean;
}

interface Props {
  title: string;
  /** Seconds since 1970. */
  times: number[];
  lines: Line[];
  show: (value: number) => string;
  binary?: boolean;
  height?: number;
}

const hours = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const moments = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const FONT = "11px system-ui, sans-serif";

/** Steps of bytes that are round in IEC units. */
const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);

export function Chart({ title, times, lines, show, binary, height = 118 }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const night = dark.value;
  const names = lines.map((line) => line.name).join();
  useLayoutEffect(() => {
    const element = place.current!;
    const grid = { stroke: variable("line"), width: 1 };
    const made = new uPlot(
      {
        width: Math.max(120, element.clientWidth),
        height,
        padding: [8, 16, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "overview" }, points: { size: 5 }, drag: { x: false, y: false } },
        scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] } },
        axes: [
          { stroke: variable("dim"), font: FONT, grid: { show: false }, ticks: { show: false }, size: 22, space: 64, values: (_, all, __, ___, step) => all.map((at) => (step < 60 ? moments : hours).format(at * 1000)) },
          {
            stroke: variable("dim"),
            font: FONT,
            grid,
            ticks: { show: false },
            size: 62,
            space: 28,
            values: (_, all) => all.map((value) => show(value)),
            ...(binary ? { incrs: BINARY } : {}),
          },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.name,
            stroke: line.colour,
            width: 1.5,
            ...(line.dash ? { dash: line.dash } : {}),
            ...(line.fill ? { fill: `${line.colour}26` } : {}),
            points: { show: false },
            spanGaps: line.gaps ?? false,
          })),
        ],
        hooks: { setCursor: [tell] },
      },
      [times, ...lines.map((line) => line.values)] as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() =>
      made.setSize({ width: Math.max(120, element.clientWidth), height }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [night, names, height]);
  const told = useRef<HTMLElement>(null);
  const last = useRef<(() => void) | undefined>(undefined);
  const write = (index: number | null | undefined) => {
    const spans = told.current?.querySelectorAll("b") ?? [];
    lines.forEach((line, n) => {
      const value = typeof index === "number" ? line.values[index] : line.values.findLast((known) => known !== null && known !== undefined);
      const span = spans[n];
      if (span) span.textContent = value === null || value === undefined ? DASH : show(value);
    });
  };
  last.current = () => write(plot.current?.cursor.idx);
  function tell() {
    last.current?.();
  }
  useEffect(() => {
    plot.current?.setData([times, ...lines.map((line) => line.values)] as uPlot.AlignedData);
    last.current?.();
  });
  return (
    <figure class="chart">
      <figcaption ref={told}>
        <strong>{title}</strong>
        {lines.map((line) => (
          <span key={line.name}>
            <svg width="16" height="8" aria-hidden="true">
              <line
                x1="0"
                x2="16"
                y1="4"
                y2="4"
                stroke={line.colour}
                stroke-width="2"
                stroke-dasharray={line.dash?.join(" ")}
              />
            </svg>
            {lines.length > 1 && line.name} <b>{DASH}</b>
          </span>
        ))}
      </figcaption>
      <div ref={place} class="plot" />
    </figure>
  );
}
