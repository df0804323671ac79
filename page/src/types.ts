/** What the server answers. A field that is absent is not known: it is shown as a dash, never as zero. */

/** Nanoseconds since the scheduler's start. */
export type Ns = number;

export type Tasks = Partial<Record<"waiting" | "ready" | "assigned" | "memory" | "failed", number>>;

export interface Group {
  id: number;
  name: string;
  total?: number;
  waiting?: number;
  /** In a queue of the scheduler. */
  ready?: number;
  /** Sent to a worker. */
  assigned?: number;
  memory?: number;
  released?: number;
  /** Tasks that failed for good. */
  erred?: number;
  /** Runs that raised. */
  failed?: number;
  runs?: number;
  seconds?: number;
  fetch_seconds?: number;
  bytes?: number;
  mean?: number;
  median?: number;
  max?: number;
  from?: Ns;
  to?: Ns;
  inputs?: number[];
}

export interface Worker {
  id: number;
  name?: string | number;
  address?: string;
  host?: string;
  pid?: number;
  status?: string;
  why?: string;
  threads?: number;
  memory_limit?: number;
  managed?: number;
  process?: number;
  spilled?: number;
  cpu?: number;
  /** Bytes of its process beside its values. */
  native?: number;
  /** Bytes a second: of its process' disks, of its machine's network. */
  disk_read?: number;
  disk_written?: number;
  net_received?: number;
  net_sent?: number;
  /** Shares of the time in which something on its machine waited for processors, memory, disks. */
  stalled?: (number | null)[];
  tasks?: number;
  values?: number;
  /** Seconds ago. */
  heard?: number;
  /** Share of the threads in the last ten seconds. */
  busy?: number;
  sent?: number;
  received?: number;
  /** Spans that it lost for lack of room. */
  lost?: number;
}

/** All workers that are there, together. */
export interface Totals {
  workers?: number;
  paused?: number;
  /** Not there any more. */
  gone?: number;
  threads?: number;
  memory_limit?: number;
  managed?: number;
  process?: number;
  spilled?: number;
}

export interface Shuffle {
  /** One that runs again has another. */
  number?: number;
  name?: string;
  /** What it does, or how it ended. */
  state?: string;
  inputs?: number;
  /** Of them. */
  transferred?: number;
  bytes?: number;
  partitions?: number;
  largest?: number;
  losses?: number;
  servers?: number;
  /** Shares of partitions in percent, and the bytes that so many do not exceed. */
  quantiles?: [number, number][];
  /** The bytes of the largest partition of each range of `bar` neighbours. */
  bars?: number[];
  bar?: number;
}

/** A server of the shuffle service, as its master knows it. */
export interface ShuffleServer {
  id: number;
  name?: string;
  address?: string;
  domain?: string;
  rack?: string;
  host_kind?: string;
  version?: string;
  weight?: number;
  free_bytes?: number;
  held_bytes?: number;
  waiting_requests?: number;
  /** Bytes that it takes in a second. */
  rate?: number;
  /** Of what its weight would give it. */
  share?: number;
  partitions?: number;
  full?: boolean;
  slow?: boolean;
  leaving?: boolean;
}

/** An application that uses the shuffle service. */
export interface Application {
  application: string;
  processes?: number;
  shuffles?: number;
  priority?: number | null;
  rows?: number;
  bytes?: number;
  /** Where a master of its own is. */
  master?: string | null;
}

/** A shuffle of the service: one that runs has more. */
export interface Served {
  shuffle?: number;
  name?: string;
  application?: string;
  client?: string;
  stages?: string;
  state?: string;
  phase?: string;
  /** Seconds since 1970. */
  began?: number;
  ended?: number;
  /** By phase. */
  seconds?: Record<string, number>;
  inputs?: number;
  transferred?: number;
  partitions?: number;
  rows?: number;
  bytes?: number;
  expected_bytes?: number;
  largest?: number | null;
  spilled_bytes?: number | null;
  /** Inputs that were transferred again. */
  repeated?: number;
  copies?: number;
  servers?: number | null;
  priority?: number;
  groups_with_fewer_copies?: number;
  maps_to_run_again?: number;
  troubles?: { time?: number; what?: string }[];
  more_troubles?: number;
  failure?: string;
}

export interface Master {
  role: "master";
  servers?: ShuffleServer[];
  more_servers?: number;
  applications?: Application[];
  more_applications?: number;
  clients?: number;
  registry?: { url?: string; current?: boolean; age?: number | null; why?: string | null } | null;
  running?: Served[];
  more_running?: number;
  ended?: Served[];
}

/** The directories of a server that are on one device. */
export interface Device {
  directories?: string[];
  waiting?: number;
  read_latency_seconds?: number;
  read_bytes_per_second?: number;
  write_bytes_per_second?: number;
  operation_seconds?: number;
  slow?: boolean;
  full?: boolean;
  throttling?: boolean;
  failures?: number;
  applications?: { application: number | string; requests?: number; bytes?: number; cost_microseconds?: number; waiting?: number }[];
}

export interface Server {
  role: "server";
  name?: string;
  address?: string;
  registry?: string;
  not_registered?: string | null;
  domain?: string;
  rack?: string;
  host_kind?: string;
  remote?: string | null;
  memory_limit?: number;
  leaving?: boolean;
  masters?: number;
  devices?: Device[];
  counts?: Record<string, number>;
}

/** One call, or the same values, for many workers. */
export interface Cast {
  client?: number;
  number?: number;
  what?: string;
  /** Of what each worker gets. */
  bytes?: number;
  /** Workers that are done with it. */
  receivers?: number;
  /** Workers that are known not to be, after a second. */
  running?: number;
  from?: Ns;
  seconds?: number;
  /** Until the last worker that is done had all of it, and its turn. */
  given_seconds?: number;
  /** Bytes that all of them got in a second of that. */
  rate?: number;
}

export interface Failure {
  key?: string;
  group?: string;
  worker?: string | number;
  worker_id?: number;
  time?: Ns;
  text?: string;
  /** An overview has none. */
  traceback?: string;
  /** How many were seen. */
  count?: number;
  /** Whether they raised. Others the scheduler gave up. */
  raised?: boolean;
}

/** All errors that are kept. */
export interface Failures {
  errors?: Failure[];
  more_errors?: number;
}

/** A task that runs. */
export interface Running {
  key?: string;
  group?: string;
  worker?: string | number;
  worker_id?: number;
  lane?: number;
  from?: Ns;
}

export interface Happening {
  time?: Ns;
  kind?: string;
  worker?: string | number;
  text?: string;
}

export interface Verdict {
  rule?: string;
  severity?: string;
  text: string;
  view?: string;
  where?: { group?: number; worker?: number; shuffle?: string; key?: string };
  /** When it was spoken of first and last. */
  first?: Ns;
  last?: Ns;
}

export interface Series {
  step?: number;
  to?: Ns;
  names?: string[];
  values?: (number | null)[][];
}

export interface Overview {
  version: number;
  live?: boolean;
  now: Ns;
  /** Seconds since 1970. */
  began?: number;
  cluster?: { address?: string; id?: string | number; treadle?: string };
  tasks?: Tasks;
  rate?: number;
  spans?: { kept?: number; older?: number; lost?: number; dropped?: number; bytes?: number; limit?: number; from?: Ns; to?: Ns };
  groups?: Group[];
  more_groups?: number;
  workers?: Worker[];
  /** Those beyond the first 500: `sight/workers` finds them. */
  more_workers?: number;
  totals?: Totals;
  series?: Series;
  /** The same of the whole run. */
  whole?: Series;
  shuffles?: Shuffle[];
  more_shuffles?: number;
  /** Those that go on, then the latest. */
  casts?: Cast[];
  more_casts?: number;
  /** Those that have run longest. */
  running?: Running[];
  more_running?: number;
  errors?: Failure[];
  /** Runs that raised, of whose errors there is none among `errors`. */
  more_errors?: number;
  events?: Happening[];
  verdicts?: Verdict[];
  /** What was spoken of before, and is not now: as it was worst. */
  earlier?: Verdict[];
  /** What answers is a process of the shuffle service. */
  service?: Master | Server | null;
}

export interface Span {
  key?: string;
  group?: string;
  kind?: string | number;
  worker?: string | number;
  worker_id?: number;
  lane?: number;
  from?: Ns;
  read?: Ns;
  computed?: Ns;
  to?: Ns;
  bytes?: number;
  ok?: boolean;
  /** It is not over. */
  running?: boolean;
  inputs?: string[];
}

export interface Transfers {
  workers: (number | string)[];
  names?: string[];
  bytes?: number[][];
  seconds?: number[][];
  waiting_seconds?: number[][];
  count?: number[][];
  failed?: number[][];
  more?: number;
  /** Values of pairs that are not told apart. */
  beyond?: number;
  beyond_bytes?: number;
}

/** Where threads were: places, each after the one that called it. */
export interface Places {
  names?: string[];
  /** The position of what called it, or -1; the number of its name; seconds, with those of what it called. */
  nodes?: [number, number, number][];
  more?: number;
  /** Of what time parts are known. */
  from?: Ns;
  to?: Ns;
}

/** A place, with what it called. */
export interface Flame {
  name: string;
  value: number;
  children: Flame[];
}

export interface Log {
  time?: Ns;
  level?: string;
  worker?: string | number;
  worker_id?: number;
  text?: string;
}

export interface Logs {
  lines?: Log[];
  /** There are older ones like them. */
  more?: boolean;
  /** Lines that are not kept. */
  lost?: number;
}
