//! The client: it makes tasks, one call after the other, and hears of them.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use treadle_scheduler::Submission;
use treadle_types::{ClientId, Options, Symbol, TaskId};

use super::parameters::Parameters;
use super::workload::{Call, Workload, calls};

/// Tasks that it sends at once.
const BATCH: usize = 1_000;

/// Tasks of one call that are sent at once.
#[derive(Debug)]
pub(super) struct Batch {
    call: usize,
    /// Within the call.
    range: Range<usize>,
    /// The number of the first.
    first: u32,
}

impl Batch {
    /// Their numbers.
    pub(super) fn tasks(&self) -> Range<u32> {
        self.first..self.first + self.range.len() as u32
    }
}

pub(super) struct Client {
    calls: Vec<Call>,
    /// By call, the number of its first task.
    firsts: Vec<u32>,
    /// The call that it makes, and how many of its tasks it has made.
    making: (usize, usize),
    /// Whether it sums up what it hears of.
    sums: bool,
    /// The number of the first task that it waits for.
    awaited: u32,
    /// Tasks whose end it has not heard of, among those that it waits for.
    waits: usize,
    /// Tasks of which it has heard, and which it has not summed up.
    finished: Vec<u32>,
    /// What it sums up next, if it is one only.
    held: Vec<u32>,
    made: u32,
    /// When it has time.
    pub(super) free: Duration,
    /// It will look at what it has heard.
    pub(super) is_awake: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the client waits for {}", self.waits)
    }
}

impl Client {
    pub(super) fn new(workload: Workload, slots: u32) -> Self {
        Self::of(calls(workload, slots), workload == Workload::Loop)
    }

    /// It submits one call, as it is told by [`Client::recorded_batch`].
    pub(super) fn replaying(call: Call) -> Self {
        Self {
            making: (1, 0),
            ..Self::of(vec![call], false)
        }
    }

    fn of(calls: Vec<Call>, sums: bool) -> Self {
        let firsts = calls.iter().scan(0, |next, call| {
            let first = *next;
            *next += call.inputs.len() as u32;
            Some(first)
        });
        let firsts: Vec<u32> = firsts.collect();
        let wanted = calls.last().map_or(&[][..], |call| &call.wanted);
        Self {
            sums,
            awaited: firsts.last().copied().unwrap_or(0),
            waits: wanted.iter().filter(|wanted| **wanted).count(),
            firsts,
            making: (0, 0),
            finished: Vec::new(),
            held: Vec::new(),
            made: 0,
            free: Duration::ZERO,
            is_awake: false,
            calls,
        }
    }

    /// Whether there is more to make.
    pub(super) fn is_making(&self) -> bool {
        self.making.0 < self.calls.len()
    }

    /// The next tasks that it makes without hearing of others, and how long it takes for them.
    pub(super) fn next_batch(&mut self, parameters: &Parameters) -> Option<(Batch, Duration)> {
        let (number, made) = self.making;
        let call = self.calls.get(number)?;
        let count = call.inputs.len();
        let end = count.min(made + BATCH);
        let cost = match call.is_graph {
            // All of it is there before the first is sent.
            true if made == 0 => parameters.delayed * count as u32,
            true => Duration::ZERO,
            false => parameters.map * (end - made) as u32,
        };
        self.making = match end == count {
            true => (number + 1, 0),
            false => (number, end),
        };
        Some((self.batch(number, made..end), cost))
    }

    /// The next tasks of the call that it replays.
    pub(super) fn recorded_batch(&mut self, count: usize) -> Batch {
        let made = self.made as usize;
        self.batch(0, made..made + count)
    }

    fn batch(&mut self, call: usize, range: Range<usize>) -> Batch {
        let first = self.made;
        self.made += range.len() as u32;
        Batch { call, range, first }
    }

    /// As the scheduler gets it; `ids` are the tasks by their numbers.
    pub(super) fn submission(&self, batch: &Batch, ids: &[TaskId]) -> Submission {
        let call = &self.calls[batch.call];
        let range = batch.range.clone();
        let count = range.len();
        let mut offsets = vec![0];
        let mut inputs = Vec::new();
        for read in &call.inputs[range.clone()] {
            inputs.extend(read.iter().map(|&input| ids[input as usize]));
            offsets.push(inputs.len() as u32);
        }
        let tasks: Vec<_> = batch.tasks().map(|number| ids[number as usize]).collect();
        let is_last = range.end == call.inputs.len();
        let wanted = tasks.iter().zip(&call.wanted[range.clone()]);
        let wanted = wanted.filter_map(|(task, wanted)| wanted.then_some(*task));
        let functions = match call.functions.get(range.clone()) {
            Some(functions) => functions.iter().copied().map(Symbol).collect(),
            None => vec![Symbol(1 + u32::from(batch.call > 0)); count],
        };
        let readers = call.readers(self.firsts[batch.call]);
        Submission {
            client: ClientId(0),
            number: batch.call as u32,
            last: is_last,
            offsets,
            inputs,
            readers: readers[range.clone()].to_vec(),
            ranks: call.ranks[range].to_vec(),
            functions,
            recipes: vec![Bytes::from_static(b"recipe"); count],
            options: vec![0; count],
            option_sets: vec![Options::default()],
            constraints: Vec::new(),
            wanted: wanted.collect(),
            located: Vec::new(),
            tasks,
        }
    }

    /// It hears of a task.
    pub(super) fn heard(&mut self, number: u32) {
        if self.sums {
            self.finished.push(number);
        } else if number >= self.awaited {
            self.waits -= 1;
        }
    }

    /// What it submits next of what has come: the sum of all that has, if that is more than one.
    pub(super) fn sum(&mut self) -> Option<Batch> {
        if !self.sums {
            return None;
        }
        self.waits -= self.finished.len();
        self.held.append(&mut self.finished);
        if self.held.len() < 2 {
            return None;
        }
        let call = Call::map(vec![std::mem::take(&mut self.held)]);
        self.waits += 1;
        self.firsts.push(self.made);
        self.calls.push(call);
        self.making = (self.calls.len(), 0);
        Some(self.batch(self.calls.len() - 1, 0..1))
    }

    pub(super) fn is_done(&self) -> bool {
        self.waits == 0
    }
}
