//! Workers, errors, shuffles and transfers, as answers have them.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use treadle_types::ObjectId;

use super::{MOST_ROWS, Sight, seconds};
use crate::errors;
use crate::event::{SHUFFLE_STATES, Shuffle};
use crate::overview::{ErrorRow, ErrorRows, Matrix, ShuffleRow, Totals, WorkerRow, WorkerRows};
use crate::transfers::{Pair, Transfers};
use crate::workers::Worker;

/// Workers of a matrix.
const MOST_IN_MATRIX: usize = 64;
/// Names of statuses.
const STATUSES: [&str; 3] = ["running", "paused", "draining"];

impl Sight {
    /// Runs that raised and are none of the latest errors.
    pub(super) fn more_errors(&self, latest: usize) -> u64 {
        let raised = self.groups.iter().map(|(_, group)| group.failed);
        let seen = self.errors.iter().take(latest).filter(|error| error.raised);
        let seen = seen.map(|error| error.count).sum();
        raised.sum::<u64>().saturating_sub(seen)
    }

    /// All errors that are kept, with their tracebacks.
    pub fn errors(&self) -> ErrorRows {
        ErrorRows {
            errors: self.errors.iter().cloned().collect(),
            more_errors: self.more_errors(errors::MOST),
        }
    }

    /// What the task of a key failed with at last, and the value that it did not make.
    pub fn error_of(&self, key: &str) -> Option<(&ErrorRow, Option<ObjectId>)> {
        let (row, object) = self.errors.of(key)?;
        Some((row, object.map(ObjectId::from_u64)))
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut limit = Some(0_u64);
        for (_, worker) in self.workers.iter() {
            if worker.gone.is_some() {
                totals.gone += 1;
                continue;
            }
            totals.workers += 1;
            totals.threads += u64::from(worker.threads);
            limit = match worker.memory {
                0 => None,
                memory => limit.map(|limit| limit.saturating_add(memory)),
            };
            let Some(state) = worker.state else {
                continue;
            };
            totals.paused += u64::from(status(worker) == "paused");
            let sums = [
                (&mut totals.managed, state.managed),
                (&mut totals.process, state.process),
                (&mut totals.spilled, state.spilled),
            ];
            for (sum, bytes) in sums {
                *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
            }
        }
        totals.memory_limit = limit.filter(|limit| *limit > 0);
        totals
    }

    /// The workers with a text in their name, address, host or status, those that are there first; at most 500.
    /// With a number, that worker, if it has the text.
    pub fn workers(&self, find: &str, worker: Option<u32>, now: u64, live: bool) -> WorkerRows {
        let now = self.moment(now, live);
        let find = find.to_lowercase();
        let (workers, more_workers) = self.worker_rows(now, live, |row, known| {
            let has = |text: &str| text.to_lowercase().contains(&find);
            worker.is_none_or(|id| id == known.id)
                && (has(&self.workers.name(row))
                    || has(&known.address)
                    || has(&known.host)
                    || has(status(known)))
        });
        WorkerRows {
            workers,
            more_workers,
        }
    }

    /// The first rows of those that are wanted, and how many more there are.
    pub(super) fn worker_rows(
        &self,
        now: u64,
        live: bool,
        wanted: impl Fn(u16, &Worker) -> bool,
    ) -> (Vec<WorkerRow>, usize) {
        let mut traffic = vec![(0_u64, 0_u64); self.workers.iter().count()];
        for (from, to, pair) in self.transfers.iter() {
            for (row, is_sent) in [(from, true), (to, false)] {
                if let Some((sent, received)) = traffic.get_mut(usize::from(row)) {
                    let sum = if is_sent { sent } else { received };
                    *sum = sum.saturating_add(pair.bytes);
                }
            }
        }
        let rows = self.workers.iter();
        let mut rows: Vec<(u16, &Worker)> =
            rows.filter(|(row, known)| wanted(*row, known)).collect();
        // Those that are there, then the latest of the others.
        rows.sort_by_key(|(row, worker)| match worker.gone {
            None => (0, *row),
            Some(_) => (1, u16::MAX - *row),
        });
        let more = rows.len().saturating_sub(MOST_ROWS);
        rows.truncate(MOST_ROWS);
        let rows = rows.into_iter().map(|(row, worker)| {
            let (sent, received) = traffic[usize::from(row)];
            let state = worker.state;
            let has = |number: u64| (number > 0).then_some(number);
            WorkerRow {
                id: worker.id,
                name: self.workers.name(row),
                address: worker.address.clone(),
                host: worker.host.clone(),
                pid: has(worker.pid),
                status: status(worker),
                why: worker.gone.clone().unwrap_or_else(|| why_paused(worker)),
                threads: worker.threads,
                memory_limit: has(worker.memory),
                managed: state.map(|state| state.managed),
                process: state.map(|state| state.process),
                spilled: state.map(|state| state.spilled),
                cpu: worker.cpu,
                native: worker.rates.native,
                disk_read: worker.rates.read,
                disk_written: worker.rates.written,
                net_received: worker.rates.received,
                net_sent: worker.rates.sent,
                stalled: Some(worker.rates.stalled).filter(|all| all.iter().any(Option::is_some)),
                tasks: state.map(|state| state.tasks),
                values: state.map(|state| state.values),
                heard: state
                    .filter(|_| live)
                    .map(|state| state.silent as f64 / 1e3),
                busy: worker.busy(now).filter(|_| worker.gone.is_none()),
                sent,
                received,
                lost: worker.lost,
            }
        });
        (rows.collect(), more)
    }

    /// What went from which worker to which.
    pub fn matrix(&self) -> Matrix {
        let mut sums = vec![0_u64; self.workers.iter().count()];
        for (from, to, pair) in self.transfers.iter() {
            for row in [from, to] {
                if let Some(sum) = sums.get_mut(usize::from(row)) {
                    *sum = sum.saturating_add(pair.bytes).saturating_add(pair.count);
                }
            }
        }
        let mut rows: Vec<u16> = (0..sums.len() as u16)
            .filter(|row| sums[usize::from(*row)] > 0)
            .collect();
        rows.sort_by_key(|row| (u64::MAX - sums[usize::from(*row)], *row));
        let more = rows.len().saturating_sub(MOST_IN_MATRIX);
        rows.truncate(MOST_IN_MATRIX);
        fn table<T>(rows: &[u16], transfers: &Transfers, of: impl Fn(&Pair) -> T) -> Vec<Vec<T>> {
            let none = Pair::default();
            let cell = |from: u16, to: u16| of(transfers.get(from, to).unwrap_or(&none));
            rows.iter()
                .map(|&from| rows.iter().map(|&to| cell(from, to)).collect())
                .collect()
        }
        Matrix {
            workers: rows
                .iter()
                .map(|&row| self.workers.get(row).map_or(0, |worker| worker.id))
                .collect(),
            names: rows.iter().map(|&row| self.workers.name(row)).collect(),
            bytes: table(&rows, &self.transfers, |pair| pair.bytes),
            seconds: table(&rows, &self.transfers, |pair| seconds(pair.time)),
            waiting_seconds: table(&rows, &self.transfers, |pair| seconds(pair.waiting)),
            count: table(&rows, &self.transfers, |pair| pair.count),
            failed: table(&rows, &self.transfers, |pair| pair.failed),
            more,
            beyond: self.transfers.others.count,
            beyond_bytes: self.transfers.others.bytes,
        }
    }
}

pub(super) fn status(worker: &Worker) -> &'static str {
    match (&worker.gone, worker.state) {
        (Some(_), _) => "gone",
        (None, Some(state)) => STATUSES
            .get(usize::from(state.status))
            .copied()
            .unwrap_or("running"),
        (None, None) => "running",
    }
}

pub(super) fn shuffle_row(shuffle: &Shuffle) -> ShuffleRow {
    ShuffleRow {
        number: shuffle.number,
        name: shuffle.name.clone(),
        state: SHUFFLE_STATES
            .get(usize::from(shuffle.state))
            .copied()
            .unwrap_or("unknown"),
        inputs: shuffle.inputs,
        transferred: shuffle.transferred,
        bytes: shuffle.bytes,
        partitions: shuffle.partitions,
        largest: (shuffle.largest > 0).then_some(shuffle.largest),
        servers: shuffle.servers,
        losses: shuffle.losses,
        quantiles: shuffle.quantiles.clone(),
        bars: shuffle.bars.clone(),
        bar: shuffle.bar,
    }
}

/// Why a worker that is there starts no tasks; empty: it does.
fn why_paused(worker: &Worker) -> String {
    let state = worker.state.filter(|state| state.status == 1);
    let Some(state) = state.filter(|_| worker.memory > 0) else {
        return String::new();
    };
    let used = state.process.max(state.managed);
    let share = used as f64 / worker.memory as f64 * 100.0;
    match used >= worker.memory / 10 * 7 {
        true => format!(
            "{share:.0} % of its memory is taken: it pauses above 80 %, and goes on below 75 %"
        ),
        false => "it was told to start no tasks".into(),
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::WorkerId;

    use crate::event::{Event, Snapshot, WorkerState};

    use super::*;

    #[test]
    fn a_worker_that_is_paused_says_why() {
        let mut sight = Sight::new(1 << 20);
        sight
            .handle(
                &Event::Joined {
                    worker: WorkerId(1),
                    name: "one".into(),
                    address: String::new(),
                    host: String::new(),
                    pid: 0,
                    threads: 1,
                    memory: 1_000,
                },
                1,
            )
            .unwrap();
        let mut why = |status, process| {
            let state = WorkerState {
                worker: 1,
                status,
                process,
                ..Default::default()
            };
            let snapshot = Snapshot {
                tasks: [0; 5],
                workers: vec![state],
            };
            sight.handle(&Event::Snapshot(snapshot), 2).unwrap();
            sight.workers("", None, 2, true).workers[0].why.clone()
        };
        assert_eq!(why(0, 900), "");
        assert!(why(1, 810).starts_with("81 % of its memory"));
        assert_eq!(why(1, 100), "it was told to start no tasks");
    }
}
