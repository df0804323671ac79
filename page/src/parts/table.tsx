/** A table that draws the rows that are seen, so that thousands cost as much as forty. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

export interface Column<R> {
  id: string;
  title: string;
  /** As CSS grid has it. */
  width: string;
  /** Numbers stand at the right, and begin with the largest. */
  number?: boolean;
  hint?: string;
  sort?: (row: R) => number | string | undefined;
  cell: (row: R) => ComponentChildren;
}

interface Props<R> {
  label: string;
  rows: readonly R[];
  columns: readonly Column<R>[];
  id: (row: R, index: number) => string | number;
  /** `id` or `-id` of a column. */
  sort?: string;
  onSort?: (sort: string) => void;
  onRow?: (row: R) => void;
  chosen?: string | number;
  rowHeight?: number;
  /** Rows that are seen at most before the table scrolls; without it, it fills its place. */
  most?: number;
  stay?: "end";
}

const keys = new Map<string, string>();

/** A text whose order has numbers in the order of their size: comparing with the rules of a language takes too long. */
function orderOf(value: number | string | undefined): number | string | undefined {
  if (typeof value !== "string") return value;
  let key = keys.get(value);
  if (key === undefined) {
    key = value.slice(0, 200).toLowerCase().replace(/\d+/g, (digits) => digits.padStart(15, "0"));
    if (keys.size > 20_000) keys.clear();
    keys.set(value, key);
  }
  return key;
}

/** What is not known is at the end in both directions. */
function compare(a: number | string, b: number | string): number {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function sorted<R>(rows: readonly R[], columns: readonly Column<R>[], sort: string | undefined): readonly R[] {
  const down = sort?.startsWith("-") ?? false;
  const by = columns.find((column) => column.id === sort?.replace("-", ""))?.sort;
  if (by === undefined) return rows;
  const keyed = rows.map((row) => ({ row, key: orderOf(by(row)) }));
  keyed.sort((a, b) => {
    if (a.key === undefined || b.key === undefined) return Number(a.key === undefined) - Number(b.key === undefined);
    const order = compare(a.key, b.key);
    return down ? -order : order;
  });
  return keyed.map(({ row }) => row);
}

const BEFORE = 8;
const GAP = 12;

/** The least pixels of all columns: below that, the table scrolls. */
function least<R>(columns: readonly Column<R>[]): number {
  return columns.reduce((sum, { width }) => sum + Number(/(\d+)px/.exec(width)?.[1] ?? 80) + GAP, GAP);
}

export function Table<R>(props: Props<R>) {
  const { rows, columns, sort, rowHeight = 26, most } = props;
  const place = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ top: 0, height: 600 });
  const ordered = useMemo(() => sorted(rows, columns, sort), [rows, columns, sort]);
  const look = () => {
    const element = place.current;
    if (element === null) return;
    const next = { top: element.scrollTop, height: element.clientHeight };
    setSeen((now) => (now.top === next.top && now.height === next.height ? now : next));
  };
  useLayoutEffect(() => {
    const element = place.current!;
    const observer = new ResizeObserver(look);
    observer.observe(element);
    look();
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (props.stay === "end" && place.current !== null) place.current.scrollTop = 1e9;
  }, [props.stay, ordered.length]);
  const first = Math.max(0, Math.floor(seen.top / rowHeight) - BEFORE);
  const last = Math.min(ordered.length, Math.ceil((seen.top + seen.height) / rowHeight) + BEFORE);
  const grid = {
    gridTemplateColumns: columns.map((column) => column.width).join(" "),
    height: `${rowHeight}px`,
    minWidth: `${least(columns)}px`,
  };
  const height = most === undefined ? undefined : `${(Math.min(most, Math.max(ordered.length, 1)) + 1) * rowHeight + 14}px`;
  return (
    <div
      class={`table ${most === undefined ? "fills" : ""}`}
      ref={place}
      onScroll={look}
      style={height && { maxHeight: height }}
      role="table"
      tabIndex={0}
      aria-label={props.label}
      aria-rowcount={ordered.length}
    >
      <div class="head row" role="row" style={grid}>
        {columns.map((column) => {
          const on = sort?.replace("-", "") === column.id;
          const down = sort?.startsWith("-");
          const turn = () =>
            props.onSort?.(on ? (down ? column.id : `-${column.id}`) : column.number ? `-${column.id}` : column.id);
          return (
            <span
              key={column.id}
              role="columnheader"
              aria-sort={on ? (down ? "descending" : "ascending") : "none"}
              class={column.number ? "number" : ""}
              title={column.hint}
            >
              {column.sort && props.onSort ? (
                <button type="button" onClick={turn}>
                  {column.title}
                  <i aria-hidden="true">{on ? (down ? "▾" : "▴") : ""}</i>
                </button>
              ) : (
                column.title
              )}
            </span>
          );
        })}
      </div>
      <div class="rows" style={{ height: `${ordered.length * rowHeight}px` }}>
        {ordered.slice(first, last).map((row, n) => {
          const id = props.id(row, first + n);
          return (
            <div
              key={id}
              role="row"
              class={`row ${id === props.chosen ? "chosen" : ""} ${props.onRow ? "click" : ""}`}
              style={{ ...grid, top: `${(first + n) * rowHeight}px` }}
              onClick={props.onRow && (() => props.onRow!(row))}
              tabIndex={props.onRow && 0}
              onKeyDown={
                props.onRow &&
                ((event: KeyboardEvent) => {
                  if (event.key === "Enter") props.onRow!(row);
                })
              }
            >
              {columns.map((column) => (
                <span key={column.id} role="cell" class={column.number ? "number" : ""}>
                  {column.cell(row)}
                </span>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}
