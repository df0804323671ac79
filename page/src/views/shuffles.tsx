/** Shuffles: what the scheduler knows of them. */

import { bytes, count, shorten } from "../format";
import { overview } from "../link";
import { Empty, Share } from "../parts/small";
import { skewColumn } from "../parts/skew";
import { Table, type Column } from "../parts/table";
import { route, set } from "../route";
import type { Shuffle } from "../types";

const written = (shuffle: Shuffle) =>
  shuffle.bytes !== undefined && shuffle.expected_bytes ? shuffle.bytes / shuffle.expected_bytes : undefined;

const COLUMNS: Column<Shuffle>[] = [
  { id: "name", title: "shuffle", width: "minmax(160px, 2fr)", sort: (s) => s.name, cell: (s) => <bdi title={shorten(s.name, 300)}>{shorten(s.name, 70)}</bdi> },
  { id: "written", title: "written", width: "120px", number: true, hint: "of the expected bytes", sort: written, cell: (s) => <Share share={written(s)} /> },
  { id: "bytes", title: "bytes", width: "92px", number: true, sort: (s) => s.bytes, cell: (s) => bytes(s.bytes) },
  { id: "expected", title: "expected", width: "92px", number: true, sort: (s) => s.expected_bytes, cell: (s) => bytes(s.expected_bytes) },
  { id: "partitions", title: "partitions", width: "86px", number: true, sort: (s) => s.partitions, cell: (s) => count(s.partitions) },
  { id: "largest", title: "largest", width: "92px", number: true, hint: "partition", sort: (s) => s.largest, cell: (s) => bytes(s.largest) },
  skewColumn("84px"),
  { id: "servers", title: "servers", width: "76px", number: true, sort: (s) => s.servers, cell: (s) => count(s.servers) },
  {
    id: "losses",
    title: "losses",
    width: "76px",
    number: true,
    sort: (s) => s.losses,
    cell: (s) => ((s.losses ?? 0) > 0 ? <em class="bad">✕ {count(s.losses)}</em> : count(s.losses)),
  },
];

export function Shuffles() {
  const shuffles = overview.value?.shuffles;
  if (shuffles === undefined) return <Empty>Shuffles are not recorded.</Empty>;
  if (shuffles.length === 0) return <Empty>No shuffle has begun.</Empty>;
  return (
    <div class="column whole">
      <Table
        label="Shuffles"
        rows={shuffles}
        columns={COLUMNS}
        id={(row, n) => row.name ?? n}
        sort={route.value.with.get("sort") ?? undefined}
        onSort={(sort) => set({ sort })}
      />
    </div>
  );
}
