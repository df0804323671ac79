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
    pub task: TaskId,
    /// Where it stands since.
    pub state: State,
    /// At which worker, if at one.
    pub worker: Option<WorkerId>,
}

/// A step of a task, for who wants to know of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub transition: Transition,
    /// How long the task ran, and the bytes of its value (0 if it raised), if a run has ended.
    pub ran: Option<(Duration, u64)>,
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

impl Record {
    fn transition(&self) -> Transition {
        Transition {
            time: Duration::from_nanos(self.nanos),
            cause: self.cause,
            task: self.task,
            state: self.state,
            worker: (self.worker != NOBODY).then_some(WorkerId(self.worker)),
        }
    }
}

/// The latest transitions, oldest overwritten first.
#[derive(Debug)]
pub(crate) struct Story {
    records: Vec<Record>,
    capacity: usize,
    next: usize,
    /// What nobody has taken yet, if somebody wants to know.
    watched: Option<Vec<Step>>,
}

impl Story {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            records: Vec::new(),
            capacity,
            next: 0,
            watched: None,
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
        if let Some(steps) = &mut self.watched {
            let transition = record.transition();
            let ran = None;
            steps.push(Step { transition, ran });
        }
    }

    /// Adds to the latest transition of a task, the end of a run, what that took and returned.
    #[inline]
    pub(crate) fn add_run(&mut self, task: TaskId, duration: Duration, nbytes: u64) {
        if let Some(steps) = &mut self.watched {
            let mut steps = steps.iter_mut().rev();
            if let Some(step) = steps.find(|step| step.transition.task == task) {
                step.ran = Some((duration, nbytes));
            }
        }
    }

    /// Keeps each transition from now on until it is taken, or none.
    pub(crate) fn watch(&mut self, wanted: bool) {
        if wanted != self.watched.is_some() {
            self.watched = wanted.then(Vec::new);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Step> {
        let steps = self.watched.as_mut();
        steps.map(core::mem::take).unwrap_or_default()
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
            story.push(record.transition());
        }
        story
    }
}
