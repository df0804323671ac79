/** Shuffles: what the scheduler knows of them. */

import { bytes, count, DASH, shorten } from "../format";
import { overview } from "../link";
import { Empty, Fact, Share } from "../parts/small";
import { skewColumn } from "../parts/skew";
import { Table, type Column } from "../parts/table";
import { route, set } from "../route";
import type { Shuffle } from "../types";

/** States and the words of people. */
const STATES: Record<string, string> = {
  waiting: "waits",
  transfer: "transfers rows",
  barrier: "compares",
  read: "is read",
};

function State({ state }: { state: string | undefined }) {
  if (state === undefined) return <>{DASH}</>;
  if (state === "failed") return <em class="bad">✕ failed</em>;
  return <span class={state in STATES ? "" : "dim"}>{STATES[state] ?? state}</span>;
}

const transferred = (shuffle: Shuffle) => (shuffle.inputs ? (shuffle.transferred ?? 0) / shuffle.inputs : undefined);
const quantile = (shuffle: Shuffle, percent: number) => shuffle.quantiles?.find(([share]) => share === percent)?.[1];

const COLUMNS: Column<Shuffle>[] = [
  { id: "name", title: "shuffle", width: "minmax(160px, 2fr)", sort: (s) => s.name, cell: (s) => <bdi title={shorten(s.name, 300)}>{shorten(s.name, 70)}</bdi> },
  { id: "state", title: "state", width: "104px", sort: (s) => s.state, cell: (s) => <State state={s.state} /> },
  { id: "transferred", title: "transferred", width: "110px", number: true, hint: "of its inputs", sort: transferred, cell: (s) => <Share share={transferred(s)} /> },
  { id: "bytes", title: "bytes", width: "92px", number: true, sort: (s) => s.bytes, cell: (s) => bytes(s.bytes) },
  { id: "partitions", title: "partitions", width: "86px", number: true, sort: (s) => s.partitions, cell: (s) => count(s.partitions) },
  { id: "median", title: "median", width: "92px", number: true, hint: "of partitions", sort: (s) => quantile(s, 50), cell: (s) => bytes(quantile(s, 50)) },
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

/** The sizes of its partitions: ranges of neighbours in their order, each as high as its largest. */
function Sizes({ shuffle }: { shuffle: Shuffle }) {
  const { bars = [], bar = 1, partitions = 0 } = shuffle;
  const most = Math.max(1, ...bars);
  const range = (n: number) => (bar > 1 ? `${n * bar} to ${Math.min((n + 1) * bar, partitions) - 1}` : `${n}`);
  return (
    <section class="chosen">
      <button type="button" class="close" aria-label="close" onClick={() => set({ shuffle: undefined })}>
        ✕
      </button>
      <h2>
        <bdi>{shorten(shuffle.name, 120)}</bdi>
      </h2>
      <dl class="facts">
        {(shuffle.quantiles ?? []).map(([share, size]) => (
          <Fact key={share} name={share === 0 ? "smallest" : `${share} % have at most`}>
            {bytes(size)}
          </Fact>
        ))}
        <Fact name="largest">{bytes(shuffle.largest)}</Fact>
      </dl>
      {bars.length === 0 ? (
        <Empty>Sizes are known once all rows are there.</Empty>
      ) : (
        <div class="sizes" role="img" aria-label={`Bytes by partition: at most ${bytes(most)}`}>
          {bars.map((size, n) => (
            <i key={n} style={{ height: `${(size / most) * 100}%` }} title={`${range(n)}: ${bytes(size)}`} />
          ))}
        </div>
      )}
    </section>
  );
}

export function Shuffles() {
  const shuffles = overview.value?.shuffles;
  if (shuffles === undefined) return <Empty>Shuffles are not recorded.</Empty>;
  if (shuffles.length === 0) return <Empty>No shuffle has begun.</Empty>;
  const { with: settings } = route.value;
  const wanted = settings.get("shuffle");
  const chosen = wanted === null ? undefined : shuffles.find((one) => String(one.number) === wanted || one.name === wanted);
  const more = overview.value?.more_shuffles ?? 0;
  return (
    <div class="column whole">
      {chosen && <Sizes shuffle={chosen} />}
      {more > 0 && <p class="note">{count(more)} older ones are not kept.</p>}
      <Table
        label="Shuffles"
        rows={shuffles}
        columns={COLUMNS}
        id={(row, n) => row.number ?? n}
        sort={settings.get("sort") ?? undefined}
        onSort={(sort) => set({ sort })}
        onRow={(row) => set({ shuffle: row.number === chosen?.number ? undefined : row.number })}
        chosen={chosen?.number}
      />
    </div>
  );
}
