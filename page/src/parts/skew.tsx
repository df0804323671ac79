/** How much larger the largest partition of a shuffle is than the others. */

import { DASH, decimal } from "../format";
import type { Column } from "./table";

interface Sizes {
  bytes?: number | null;
  partitions?: number | null;
  largest?: number | null;
}

/** A skew that is worth a look. */
const SKEWED = 3;

/** How many times the mean the largest partition is. */
function skew({ bytes, partitions, largest }: Sizes): number | undefined {
  return bytes && partitions && largest !== undefined && largest !== null ? largest / (bytes / partitions) : undefined;
}

/** The column of a table that shows it. */
export function skewColumn<T extends Sizes>(width: string): Column<T> {
  return {
    id: "skew",
    title: "skew",
    width,
    number: true,
    hint: "the largest partition against the mean",
    sort: skew,
    cell: (shuffle) => {
      const times = skew(shuffle);
      if (times === undefined) return DASH;
      return times >= SKEWED ? <em class="warn">▲ {decimal(times)} ×</em> : `${decimal(times)} ×`;
    },
  };
}
