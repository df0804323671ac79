//! Who takes part, and who did.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::batch::System;
use crate::event::WorkerState;
use crate::series::SECOND;
use crate::span::lane;

/// Workers that are told apart. One that comes later takes the row of one that is gone, and what that did is
/// drawn as another's: so this is far more than clusters have.
const MOST: usize = 1 << 14;
/// The row of workers of which nothing is known.
pub(crate) const UNKNOWN: u16 = u16::MAX;
/// Seconds of which it is known how busy a worker was.
const SECONDS: usize = 16;
/// Groups that a worker may name.
const MOST_NAMES: usize = 1 << 13;

/// A worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) host: String,
    pub(crate) pid: u64,
    pub(crate) threads: u32,
    pub(crate) memory: u64,
    /// Why it is gone.
    pub(crate) gone: Option<String>,
    /// Whether that was as it should be.
    pub(crate) left: bool,
    pub(crate) state: Option<WorkerState>,
    /// Processor time, and when it was told.
    processor: (u64, u64),
    /// Processors that it used between the last two batches.
    pub(crate) cpu: Option<f64>,
    /// What the system counts, and when that was told.
    system: (System, u64),
    /// What that says of the time between the last two that differ.
    pub(crate) rates: Rates,
    /// What it lost of spans.
    pub(crate) lost: u64,
    /// Nanoseconds in which its executors were busy, by second, and of processors that it used.
    busy: [u64; SECONDS],
    used: [u64; SECONDS],
    /// The second after the last of them.
    end: u64,
    /// Its numbers of groups.
    names: Vec<u16>,
    /// Tasks that run there, as far as it said.
    pub(crate) running: Vec<Running>,
    /// How many others run there, and since when on average.
    pub(crate) unnamed: (u64, u64),
}

/// A task that runs, or a cast.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) object: u64,
    pub(crate) lane: u16,
    pub(crate) began: u64,
    pub(crate) group: String,
    /// The number of that.
    pub(crate) number: u16,
    pub(crate) key: String,
}

impl Worker {
    fn new(id: u32) -> Self {
        Self {
            id,
            name: String::new(),
            address: String::new(),
            host: String::new(),
            pid: 0,
            threads: 0,
            memory: 0,
            gone: None,
            left: false,
            state: None,
            processor: (0, 0),
            cpu: None,
            system: (System::default(), 0),
            rates: Rates::default(),
            lost: 0,
            busy: [0; SECONDS],
            used: [0; SECONDS],
            end: 0,
            names: Vec::new(),
            running: Vec::new(),
            unnamed: (0, 0),
        }
    }

    /// It calls a group by a number.
    pub(crate) fn named(&mut self, number: u32, group: u16) {
        let place = number as usize;
        if place < MOST_NAMES {
            if self.names.len() <= place {
                self.names.resize(place + 1, 0);
            }
            self.names[place] = group;
        }
    }

    #[inline]
    pub(crate) fn group(&self, number: u32) -> u16 {
        self.names.get(number as usize).copied().unwrap_or(0)
    }

    fn advance(&mut self, second: u64) {
        if second >= self.end {
            let passed = (second + 1 - self.end).min(SECONDS as u64);
            for next in second + 1 - passed..=second {
                self.busy[next as usize % SECONDS] = 0;
                self.used[next as usize % SECONDS] = 0;
            }
            self.end = second + 1;
        }
    }

    /// An executor thread was busy.
    #[inline]
    pub(crate) fn was_busy(&mut self, start: u64, end: u64, now: u64) {
        let (start, end) = (start.min(now), end.min(now));
        self.advance(end / SECOND);
        for (second, length) in self.seconds(start, end) {
            self.busy[second as usize % SECONDS] += length;
        }
    }

    /// The parts of a time in the seconds that are kept: they are at most as many as those.
    #[inline]
    fn seconds(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let oldest = self.end.saturating_sub(SECONDS as u64) * SECOND;
        let mut start = start.max(oldest);
        core::iter::from_fn(move || {
            let second = start / SECOND;
            let until = ((second + 1) * SECOND).min(end);
            let length = until.checked_sub(start).filter(|length| *length > 0)?;
            start = until;
            Some((second, length))
        })
    }

    /// The share of its threads' time in which they ran tasks, in the last ten whole seconds but one:
    /// what ended later may not have been told yet.
    pub(crate) fn busy(&self, now: u64) -> Option<f64> {
        if self.threads == 0 {
            return None;
        }
        // With what still runs.
        let (from, end) = recent(now)?;
        let running = self.running.iter().filter(|task| task.lane < lane::OTHERS);
        let since = |began: u64| (end * SECOND).saturating_sub(began.max(from * SECOND));
        let (count, began) = self.unnamed;
        let unnamed = count as f64 * since(began) as f64;
        let running = running.map(|task| since(task.began)).sum::<u64>() as f64 + unnamed;
        let running = running / ((end - from) * SECOND) as f64;
        let busy = (self.recent(&self.busy, now)? + running) / f64::from(self.threads);
        Some(busy.min(1.0))
    }

    /// How many processors its process used in the same time.
    pub(crate) fn processors(&self, now: u64) -> Option<f64> {
        self.recent(&self.used, now)
    }

    /// What there was of something a second, in the last ten whole seconds but one.
    fn recent(&self, of: &[u64; SECONDS], now: u64) -> Option<f64> {
        let (from, end) = recent(now)?;
        let known = |second: &u64| *second < self.end && *second + SECONDS as u64 >= self.end;
        let seconds = (from..end).filter(known);
        let sum = seconds.fold(0_u64, |sum, second| {
            sum.saturating_add(of[second as usize % SECONDS])
        });
        Some(sum as f64 / ((end - from) * SECOND) as f64)
    }

    pub(crate) fn processor(&mut self, taken: u64, now: u64) {
        let (before, when) = self.processor;
        if taken > before && now > when {
            if before > 0 {
                let share = (taken - before) as f64 / (now - when) as f64;
                self.cpu = Some(share);
                self.advance(now / SECOND);
                for (second, length) in self.seconds(when, now) {
                    let used = &mut self.used[second as usize % SECONDS];
                    // A file may say anything.
                    *used = used.saturating_add((share * length as f64) as u64);
                }
            }
            self.processor = (taken, now);
        }
    }
}

impl Worker {
    pub(crate) fn system(&mut self, system: System, now: u64) {
        let (before, when) = self.system;
        if system == System::default() {
            return;
        }
        self.rates.native = Some(system.native);
        // Batches that follow each other at once say nothing of a rate.
        let passed = now.saturating_sub(when);
        if passed < SECOND / 2 {
            return;
        }
        // The system is asked once a second, batches come twice: the second one tells nothing new.
        if system == before && passed < SAME {
            return;
        }
        self.system = (system, now);
        if before == System::default() {
            return;
        }
        let seconds = (now - when) as f64 / SECOND as f64;
        let rate = |before: u64, after: u64| {
            let known = before > 0 && after >= before;
            known.then(|| (after - before) as f64 / seconds)
        };
        let stalled = |place: usize| {
            let micros = rate(before.stalled[place], system.stalled[place]);
            micros.map(|micros| (micros / 1e6).min(1.0))
        };
        self.rates = Rates {
            native: Some(system.native),
            read: rate(before.read, system.read),
            written: rate(before.written, system.written),
            received: rate(before.received, system.received),
            sent: rate(before.sent, system.sent),
            stalled: [0, 1, 2].map(stalled),
        };
    }
}

/// What the system says of a worker; bytes a second, and shares of the time.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Rates {
    pub(crate) native: Option<u64>,
    pub(crate) read: Option<f64>,
    pub(crate) written: Option<f64>,
    pub(crate) received: Option<f64>,
    pub(crate) sent: Option<f64>,
    pub(crate) stalled: [Option<f64>; 3],
}

/// For how long what the system counts is the same though it was asked again, in nanoseconds.
const SAME: u64 = 2 * SECOND;

/// The last ten whole seconds but one.
fn recent(now: u64) -> Option<(u64, u64)> {
    let end = (now / SECOND).saturating_sub(1);
    let from = end.saturating_sub(10);
    (from < end).then_some((from, end))
}

/// All of them, by row.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    rows: Vec<Worker>,
    by_id: BTreeMap<u32, u16>,
    /// The row to use again next.
    next: usize,
}

impl Workers {
    /// The row of a worker, which may be new. `None`: all are of others that are there.
    pub(crate) fn row(&mut self, id: u32) -> Option<u16> {
        if let Some(row) = self.by_id.get(&id) {
            return Some(*row);
        }
        let row = if self.rows.len() < MOST {
            self.rows.push(Worker::new(id));
            self.rows.len() - 1
        } else {
            let mut rows = (self.next..MOST).chain(0..self.next);
            let row = rows.find(|row| self.rows[*row].gone.is_some())?;
            self.next = (row + 1) % MOST;
            self.by_id.remove(&self.rows[row].id);
            self.rows[row] = Worker::new(id);
            row
        };
        self.by_id.insert(id, row as u16);
        Some(row as u16)
    }

    #[inline]
    pub(crate) fn get(&self, row: u16) -> Option<&Worker> {
        self.rows.get(usize::from(row))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, row: u16) -> Option<&mut Worker> {
        self.rows.get_mut(usize::from(row))
    }

    pub(crate) fn find(&self, id: u32) -> Option<u16> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u16, &Worker)> {
        self.rows
            .iter()
            .enumerate()
            .map(|(row, worker)| (row as u16, worker))
    }

    pub(crate) fn name(&self, row: u16) -> String {
        match self.get(row) {
            Some(worker) if !worker.name.is_empty() => worker.name.to_owned(),
            Some(worker) => alloc::format!("worker {}", worker.id),
            None => "an unknown worker".into(),
        }
    }

    pub(crate) fn name_of(&self, id: u32) -> String {
        match self.find(id) {
            Some(row) => self.name(row),
            None => alloc::format!("worker {id}"),
        }
    }

    pub(crate) fn check(&self) {
        assert!(self.rows.len() <= MOST);
        assert_eq!(self.rows.len(), self.by_id.len());
        for (id, row) in &self.by_id {
            assert_eq!(self.rows[usize::from(*row)].id, *id);
        }
        let mut seen = vec![false; self.rows.len()];
        for row in self.by_id.values() {
            assert!(!core::mem::replace(&mut seen[usize::from(*row)], true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_busy_a_worker_is_says_the_last_seconds() {
        let mut worker = Worker::new(1);
        worker.threads = 2;
        assert_eq!(worker.busy(SECOND), None);
        let now = 100 * SECOND;
        // One of two threads, all the time.
        worker.was_busy(50 * SECOND, now, now);
        assert_eq!(worker.busy(now), Some(0.5));
        assert_eq!(worker.busy(now + 100 * SECOND), Some(0.0));
        // And with what still runs: half of the time of the other one.
        worker.running.push(Running {
            object: 5,
            lane: 1,
            began: now - 6 * SECOND,
            group: "x".into(),
            number: 1,
            key: "x".into(),
        });
        assert_eq!(worker.busy(now), Some(0.75));
        // A cast is at none of its executor threads.
        worker.running[0].lane = lane::CAST;
        assert_eq!(worker.busy(now), Some(0.5));
        // Of what is not named it is known how many there are.
        worker.threads = 200;
        worker.unnamed = (99, now - 60 * SECOND);
        assert_eq!(worker.busy(now), Some(0.5));
    }

    #[test]
    fn what_the_system_counts_is_told_a_second() {
        let mut worker = Worker::new(1);
        let at = |half: u64| {
            let system = System {
                native: 7 + half,
                read: 100 + 50 * half,
                written: 0,
                received: 1 + 10 * half,
                sent: 9,
                stalled: [1 + 250_000 * half, 0, 1],
            };
            (system, (1 + half) * SECOND / 2)
        };
        for half in [0, 2] {
            let (system, now) = at(half);
            worker.system(system, now);
        }
        let first = worker.rates;
        assert_eq!(first.native, Some(9));
        assert_eq!((first.read, first.written), (Some(100.0), None));
        assert_eq!((first.received, first.sent), (Some(20.0), Some(0.0)));
        assert_eq!(first.stalled, [Some(0.5), None, Some(0.0)]);
        // A worker of an earlier release says nothing, and the next batch comes at once.
        worker.system(System::default(), 9 * SECOND);
        worker.system(at(3).0, 3 * SECOND / 2 + 1);
        assert_eq!(worker.rates.read, first.read);
        // A process that began again counts from zero.
        worker.system(at(0).0, 20 * SECOND);
        assert_eq!((worker.rates.read, worker.rates.native), (None, Some(7)));
    }

    #[test]
    fn a_rate_is_that_of_a_second_though_batches_come_twice() {
        let mut worker = Worker::new(1);
        for half in 0..20 {
            // What was asked at the last whole second.
            let asked = half / 2;
            let system = System {
                native: 7,
                received: 1 + 1_000 * asked,
                stalled: [1 + 600_000 * asked, 0, 0],
                ..System::default()
            };
            worker.system(system, (2 + half) * SECOND / 2);
            if half >= 2 {
                assert_eq!(worker.rates.received, Some(1_000.0), "{half}");
                assert_eq!(worker.rates.stalled[0], Some(0.6), "{half}");
            }
        }
        // Nothing has happened since.
        let (still, _) = worker.system;
        worker.system(still, 14 * SECOND);
        assert_eq!(worker.rates.received, Some(0.0));
    }

    #[test]
    fn processors_are_those_of_the_last_seconds() {
        let mut worker = Worker::new(1);
        assert_eq!(worker.processors(SECOND), None);
        let half = SECOND / 2;
        for step in 1..=60 {
            // One and a half, then none.
            let taken = step.min(40) * 3 * half / 2;
            worker.processor(taken, step * half);
        }
        assert_eq!(worker.processors(20 * SECOND), Some(1.5));
        assert_eq!(worker.processors(40 * SECOND), Some(0.0));
    }

    #[test]
    fn what_a_file_says_of_processors_may_be_anything() {
        let mut worker = Worker::new(1);
        for (taken, now) in [(1, 1), (u64::MAX / 2, 2), (u64::MAX, 3)] {
            worker.processor(taken, now);
        }
        assert!(worker.processors(10 * SECOND).is_some());
    }

    #[test]
    fn rows_of_who_is_gone_are_used_again_and_no_others() {
        let mut workers = Workers::default();
        for id in 0..MOST as u32 {
            assert!(workers.row(id).is_some());
        }
        assert_eq!(workers.row(MOST as u32), None);
        for gone in [7, 3, 9] {
            workers.get_mut(gone).unwrap().gone = Some("it was killed".into());
        }
        let rows: Vec<_> = (0..4).map(|id| workers.row(MOST as u32 + id)).collect();
        assert_eq!(rows, [Some(3), Some(7), Some(9), None]);
        workers.check();
        assert_eq!((workers.find(3), workers.find(4)), (None, Some(4)));
    }
}
