//! What happened lately.

use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::{TaskId, WorkerId};

/// Where a task stands, without the details.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Known; it has no value, and nobody needs one.
    Released,
    /// Some inputs have no value.
    Waiting,
    /// In a queue of the scheduler.
    Ready,
    /// Sent to a worker.
    Assigned,
    /// Sent to a worker, and asked back.
    Retracting,
    /// It has a value.
    Memory,
    /// It will not get a value by itself.
    Failed,
    /// Not known any more.
    Forgotten,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Released,
        Self::Waiting,
        Self::Ready,
        Self::Assigned,
        Self::Retracting,
        Self::Memory,
        Self::Failed,
        Self::Forgotten,
    ];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Assigned => "assigned",
            Self::Retracting => "retracting",
            Self::Memory => "memory",
            Self::Failed => "failed",
            Self::Forgotten => "forgotten",
        }
    }
}

/// One step of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// When, on the clock of [`Scheduler::handle`](crate::Scheduler::handle).
    pub time: Duration,
    /// The number of the event that led to it: events are counted from 1.
    pub cause: u64,
    /// The task.
    pub task: TaskId,
    /// Where it stands since.
    pub state: State,
    /// At which worker, if at one.
    pub worker: Option<WorkerId>,
}

const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Record {
    nanos: u64,
    cause: u64,
    task: TaskId,
    worker: u32,
    state: State,
}

/// The latest transitions, oldest overwritten first.
#[derive(Debug)]
pub(crate) struct Story {
    records: Vec<Record>,
    capacity: usize,
    next: usize,
}

impl Story {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            records: Vec::new(),
            capacity,
            next: 0,
        }
    }

    #[inline]
    pub(crate) fn add(
        &mut self,
        now: Duration,
        cause: u64,
        task: TaskId,
        state: State,
        worker: Option<WorkerId>,
    ) {
        let record = Record {
            // Wraps after 584 years.
            nanos: now.as_secs() * 1_000_000_000 + u64::from(now.subsec_nanos()),
            cause,
            task,
            worker: worker.map_or(NOBODY, |worker| worker.0),
            state,
        };
        if self.records.len() < self.capacity {
            self.records.push(record);
        } else if let Some(oldest) = self.records.get_mut(self.next) {
            *oldest = record;
            self.next += 1;
            if self.next == self.capacity {
                self.next = 0;
            }
        }
    }

    /// The transitions of a task since its id was last given away, oldest first.
    pub(crate) fn of(&self, task: TaskId) -> Vec<Transition> {
        let (newer, older) = self.records.split_at(self.next);
        let mut story = Vec::new();
        for record in older.iter().chain(newer).filter(|r| r.task == task) {
            if story
                .last()
                .is_some_and(|t: &Transition| t.state == State::Forgotten)
            {
                story.clear();
            }
            story.push(Transition {
                time: Duration::from_nanos(record.nanos),
                cause: record.cause,
                task,
                state: record.state,
                worker: (record.worker != NOBODY).then_some(WorkerId(record.worker)),
            });
        }
        story
    }
}
