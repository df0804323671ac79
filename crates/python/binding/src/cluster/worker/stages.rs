//! What a task's run is made of, for those who watch the cluster.

use super::shared::WorkerShared;
use bytes::Bytes;
use std::cell::Cell;
use treadle_interpreter::clock;
use treadle_node_worker::{Ran, Task, Timed};
use treadle_worker::Outcome;

thread_local! {
    /// The number of an executor thread, among those that the worker has at a time.
    static LANE: Cell<u32> = const { Cell::new(0) };
}

/// Numbers of executor threads: the lowest that is free, so that a trace has few rows.
#[derive(Default)]
pub(super) struct Lanes(Vec<bool>);

impl Lanes {
    /// Gives the calling thread a number.
    pub(super) fn enter(&mut self) {
        let free = self.0.iter().position(|taken| !taken);
        let lane = free.unwrap_or_else(|| {
            self.0.push(false);
            self.0.len() - 1
        });
        self.0[lane] = true;
        LANE.set(lane as u32);
    }

    /// The calling thread ends.
    pub(super) fn leave(&mut self) {
        self.0[LANE.get() as usize] = false;
    }
}

/// The number of the calling thread.
pub(super) fn lane() -> u32 {
    LANE.get()
}

/// When the stages of a task ended; 0: nobody looked.
pub(super) struct Stages {
    /// Whether somebody traces.
    is_on: bool,
    /// Whether times are recorded.
    is_timed: bool,
    /// Whether there are inputs to read.
    reads: bool,
    began: u64,
    read: Cell<u64>,
    computed: Cell<u64>,
    function: Cell<Option<u32>>,
}

impl Stages {
    #[inline]
    pub(super) fn begin(shared: &WorkerShared, task: &Task, key: &Bytes, began: u64) -> Self {
        let tracing = shared.node.tracing();
        let is_on = tracing.is_on();
        if is_on {
            let key = Bytes::copy_from_slice(key);
            tracing.begins(LANE.get(), task.object, key, began);
        }
        Self {
            is_on,
            is_timed: tracing.is_wanted(),
            reads: task.reads().next().is_some(),
            began,
            read: Cell::new(0),
            computed: Cell::new(0),
            function: Cell::new(None),
        }
    }

    /// Its inputs are there.
    #[inline]
    pub(super) fn read(&self) {
        if self.is_timed && self.reads {
            self.read.set(clock::now());
        }
    }

    /// It uses a definition. The first one is what it calls.
    #[inline]
    pub(super) fn uses(&self, number: u32) {
        if self.is_on && self.function.get().is_none() {
            self.function.set(Some(number));
        }
    }

    /// Its function has returned.
    #[inline]
    pub(super) fn computed(&self) {
        if self.is_timed {
            self.computed.set(clock::now());
        }
    }

    /// It is over.
    #[inline]
    pub(super) fn end(
        self,
        shared: &WorkerShared,
        task: &Task,
        key: &Bytes,
        outcome: &Outcome,
        ended: u64,
    ) {
        let tracing = shared.node.tracing();
        if !tracing.is_wanted() {
            return;
        }
        let (nbytes, is_good) = match outcome {
            Outcome::Returned(returned) => (returned.nbytes, true),
            _ => (0, false),
        };
        let known = |time: u64, otherwise| if time == 0 { otherwise } else { time };
        let timed = Timed {
            lane: LANE.get(),
            object: task.object,
            began: self.began,
            read: known(self.read.get(), self.began),
            computed: known(self.computed.get(), ended),
            ended,
            nbytes,
            is_good,
            is_given_back: matches!(outcome, Outcome::GivenBack),
        };
        tracing.timed(&timed, key);
        if tracing.is_on() {
            self.trace(shared, task, key, &timed);
        }
    }

    /// The same for who traces, with more of it.
    #[cold]
    fn trace(&self, shared: &WorkerShared, task: &Task, key: &Bytes, timed: &Timed) {
        let function = self.function.get();
        let function = function.and_then(|number| shared.node.definition_name(task.client, number));
        shared.node.tracing().ran(Ran {
            task: *timed,
            key: Bytes::copy_from_slice(key),
            function: function.unwrap_or_default(),
            reads: task.reads().collect(),
        });
    }
}
