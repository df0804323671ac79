/** Casts: what clients sent to many workers at once. */

import { bytes, count, DASH, moment, perSecond, seconds, shorten } from "../format";
import { overview } from "../link";
import { Empty } from "../parts/small";
import { Table, type Column } from "../parts/table";
import { route, set } from "../route";
import type { Cast } from "../types";

const idOf = (cast: Cast) => `${cast.client}.${cast.number}`;

function columns(began: number | undefined): Column<Cast>[] {
  return [
    { id: "client", title: "client", width: "minmax(70px, 0.6fr)", hint: "a view, or another connection", sort: (c) => c.client, cell: (c) => count(c.client) },
    { id: "number", title: "cast", width: "64px", number: true, sort: (c) => c.number, cell: (c) => c.number ?? DASH },
    { id: "what", title: "what for", width: "minmax(130px, 1.4fr)", sort: (c) => c.what, cell: (c) => <bdi>{shorten(c.what, 60)}</bdi> },
    { id: "state", title: "state", width: "minmax(96px, 1fr)", sort: (c) => c.running, cell: (c) => ((c.running ?? 0) > 0 ? `● at ${count(c.running)}` : "done") },
    { id: "receivers", title: "workers", width: "70px", number: true, hint: "that are done with it", sort: (c) => c.receivers, cell: (c) => count(c.receivers) },
    { id: "bytes", title: "size", width: "80px", number: true, hint: "of what each worker gets", sort: (c) => c.bytes, cell: (c) => bytes(c.bytes) },
    { id: "given", title: "on its way", width: "80px", number: true, hint: "until the last worker had all of it, and its turn", sort: (c) => c.given_seconds, cell: (c) => seconds(c.given_seconds) },
    { id: "rate", title: "rate", width: "96px", number: true, hint: "of all workers together, meanwhile", sort: (c) => c.rate, cell: (c) => perSecond(c.rate) },
    { id: "seconds", title: "took", width: "80px", number: true, hint: "from the first worker that heard of it to the last one that is done", sort: (c) => c.seconds, cell: (c) => seconds(c.seconds) },
    { id: "from", title: "began", width: "86px", number: true, sort: (c) => c.from, cell: (c) => moment(c.from, began) },
  ];
}

export function Casts() {
  const now = overview.value;
  const casts = now?.casts;
  if (casts === undefined) return <Empty>Casts are not recorded.</Empty>;
  if (casts.length === 0) return <Empty>Nothing was sent to many workers at once.</Empty>;
  return (
    <div class="column whole">
      {(now?.more_casts ?? 0) > 0 && <p class="note">the latest of {count(casts.length + (now?.more_casts ?? 0))}</p>}
      <Table
        label="Casts"
        rows={casts}
        columns={columns(now?.began)}
        id={idOf}
        sort={route.value.with.get("sort") ?? undefined}
        onSort={(sort) => set({ sort })}
      />
    </div>
  );
}
