/** What the memory of a worker is full of, against its limit; below, what it has spilled. */

import { bytes, DASH } from "../format";
import type { Worker } from "../types";

export function Memory({ worker }: { worker: Worker }) {
  const { managed, process, spilled } = worker;
  const known = [managed, process, spilled].some((part) => part !== undefined);
  if (!known) return <span>{DASH}</span>;
  const values = managed ?? 0;
  const other = Math.max(0, (process ?? values) - values);
  const limit = worker.memory_limit || Math.max(values + other, 1);
  const parts = [
    ["managed", managed ?? 0],
    ["other", other],
  ] as const;
  const told = `values ${bytes(managed)}, process ${bytes(process)}, spilled ${bytes(spilled)}, limit ${bytes(worker.memory_limit)}`;
  return (
    <span class="memory" title={told} role="img" aria-label={told}>
      <span class="track">
        {parts.map(([name, part]) => part > 0 && <i key={name} class={`memory ${name}`} style={{ width: `${Math.min(100, (part / limit) * 100)}%` }} />)}
      </span>
      {(spilled ?? 0) > 0 && (
        <span class="disk">
          <i class="memory spilled" style={{ width: `${Math.min(100, ((spilled ?? 0) / limit) * 100)}%` }} />
        </span>
      )}
    </span>
  );
}
