//! Tasks of this worker that wait: transfers, barriers and reads.

mod pushing;
mod reading;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_reactor::thread::lock;
use treadle_shuffle::{
    Commit, CommitError, FromServer, Generation, GroupId, LinkId, Plan, ReadError, Receipt,
    ServerId, ToMaster, Transfer, TransferError, Usage,
};
use treadle_types::Runs;

use crate::machines::Machines;
use crate::read_rows::ReadRows;
use crate::{Failure, Inner, POLL, Plane, Waiter};

/// The reason of tasks that are given back because the worker ends.
const OVER: &str = "the worker ends";

/// Tasks that wait.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    transfers: HashMap<Transfer, Running>,
    commits: HashMap<u64, Committing>,
    reads: HashMap<u64, Reading>,
    /// Threads that must be woken.
    called: Vec<Arc<Waiter>>,
    /// The number of the last barrier, and of the last read.
    last: u64,
}

/// A transfer.
#[derive(Debug)]
struct Running {
    waiter: Arc<Waiter>,
    /// Groups whose rows must be gathered.
    wanted: Vec<(GroupId, Runs)>,
    /// With the plan by which it has ended.
    outcome: Option<Result<(Receipt, Arc<Plan>), TransferError>>,
}

/// A barrier.
#[derive(Debug)]
struct Committing {
    waiter: Arc<Waiter>,
    outcome: Option<Result<Generation, CommitError>>,
}

/// A read.
#[derive(Debug)]
struct Reading {
    waiter: Arc<Waiter>,
    came: VecDeque<Came>,
    /// The rows that came last.
    rows: ReadRows,
    /// Those of the groups before.
    kept: ReadRows,
    outcome: Option<Result<(), ReadError>>,
}

/// Rows that a server has sent. Their digests are not computed yet.
#[derive(Debug)]
struct Came {
    from: ServerId,
    message: FromServer,
    rows: Vec<Bytes>,
}

impl Running {
    fn new(waiter: &Arc<Waiter>) -> Self {
        Self {
            waiter: Arc::clone(waiter),
            wanted: Vec::new(),
            outcome: None,
        }
    }
}

impl Reading {
    fn new(waiter: &Arc<Waiter>) -> Self {
        Self {
            waiter: Arc::clone(waiter),
            came: VecDeque::new(),
            rows: ReadRows::default(),
            kept: ReadRows::default(),
            outcome: None,
        }
    }

    fn bytes(&self) -> u64 {
        self.kept.bytes() + self.rows.bytes()
    }

    /// The rows of all groups.
    fn into_rows(mut self) -> ReadRows {
        if !self.kept.is_empty() {
            self.rows.append(&mut self.kept);
            // No map has rows in two groups.
            self.rows.sort();
        }
        self.rows
    }
}

impl Tasks {
    pub(crate) fn gather(&mut self, transfer: Transfer, group: GroupId, partitions: Runs) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.wanted.push((group, partitions));
            call(&mut self.called, &running.waiter);
        }
    }

    /// Rows for a group are not wanted any more.
    pub(crate) fn free(&mut self, transfer: Transfer, group: GroupId) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.wanted.retain(|(wanted, _)| *wanted != group);
        }
    }

    pub(crate) fn transferred(
        &mut self,
        transfer: Transfer,
        outcome: Result<(Receipt, Arc<Plan>), TransferError>,
    ) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.outcome = Some(outcome);
            call(&mut self.called, &running.waiter);
        }
    }

    pub(crate) fn committed(&mut self, ask: u64, outcome: Result<Generation, CommitError>) {
        if let Some(commit) = self.commits.get_mut(&ask) {
            commit.outcome = Some(outcome);
            call(&mut self.called, &commit.waiter);
        }
    }

    /// Rows have come for a read.
    pub(crate) fn came(
        &mut self,
        read: u64,
        from: ServerId,
        message: FromServer,
        rows: Vec<Bytes>,
    ) {
        if let Some(reading) = self.reads.get_mut(&read) {
            reading.came.push_back(Came {
                from,
                message,
                rows,
            });
            call(&mut self.called, &reading.waiter);
        }
    }

    /// The rows that came last are right, and those of other groups follow.
    pub(crate) fn keep(&mut self, read: u64) {
        if let Some(reading) = self.reads.get_mut(&read) {
            reading.kept.append(&mut reading.rows);
        }
    }

    pub(crate) fn read_over(&mut self, read: u64, outcome: Result<(), ReadError>) {
        if let Some(reading) = self.reads.get_mut(&read) {
            reading.outcome = Some(outcome);
            call(&mut self.called, &reading.waiter);
        }
    }

    /// Has all threads look again.
    pub(crate) fn call_all(&mut self) {
        let transfers = self.transfers.values().map(|running| &running.waiter);
        let commits = self.commits.values().map(|commit| &commit.waiter);
        let reads = self.reads.values().map(|reading| &reading.waiter);
        for waiter in transfers.chain(commits).chain(reads) {
            call(&mut self.called, waiter);
        }
    }

    /// Threads that must be woken now.
    pub(crate) fn called(&mut self) -> Vec<Arc<Waiter>> {
        std::mem::take(&mut self.called)
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Something has come for the task of this thread.
fn call(called: &mut Vec<Arc<Waiter>>, waiter: &Arc<Waiter>) {
    if waiter.call() {
        called.push(Arc::clone(waiter));
    }
}

/// What a task that waits is to do next.
enum Next<W, T> {
    /// Work to do without the lock.
    Work(W),
    /// The task has ended.
    Over(Result<T, Failure>),
}

impl Plane {
    /// Makes the servers compare their rows with the receipts, and waits for the result.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn commit(
        &self,
        commit: Commit,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Generation, Failure> {
        let inner = &*self.0;
        let (shuffle, began) = (commit.shuffle, Instant::now());
        let waiter = Waiter::current();
        let ask = inner.with(|machines| {
            let ask = machines.tasks.next();
            let committing = Committing {
                waiter: Arc::clone(&waiter),
                outcome: None,
            };
            machines.tasks.commits.insert(ask, committing);
            inner
                .callbacks
                .tell(LinkId::ONLY, ToMaster::Commit { ask, commit });
            machines.after.has_told = true;
            ask
        });
        let outcome = inner.wait(&waiter, interrupted, |machines| {
            let outcome = machines.tasks.commits.get(&ask)?.outcome.as_ref()?;
            Some(outcome.as_ref().copied().map_err(|error| *error))
        });
        let outcome = outcome.and_then(|outcome| outcome.map_err(commit_failed));
        inner.with(|machines| {
            machines.tasks.commits.remove(&ask);
            let usage = machines.usage(shuffle);
            usage.comparing += micros(began.elapsed());
            if let Err(failure) = &outcome {
                count(usage, failure);
            }
        });
        outcome
    }
}

impl Inner {
    /// Waits until `find` returns something. It is asked again whenever `waiter` is called.
    fn wait<T>(
        &self,
        waiter: &Waiter,
        interrupted: &mut dyn FnMut() -> bool,
        mut find: impl FnMut(&mut Machines) -> Option<T>,
    ) -> Result<T, Failure> {
        loop {
            // Cleared before it looks: what comes from here on calls again.
            waiter.was_called();
            {
                let mut machines = lock(&self.machines);
                match find(&mut machines) {
                    Some(found) => return Ok(found),
                    None if machines.is_over => return Err(Failure::Again(OVER.into())),
                    None => {}
                }
            }
            if interrupted() {
                return Err(Failure::Interrupted);
            }
            self.callbacks.wait(&mut || waiter.was_called(), POLL);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Counts what did not end well. Who is interrupted is not needed any more.
fn count(usage: &mut Usage, failure: &Failure) {
    match failure {
        Failure::Interrupted => {}
        Failure::Again(_) | Failure::Superseded(_) => usage.again += 1,
        _ => usage.failed += 1,
    }
}

fn commit_failed(error: CommitError) -> Failure {
    let text = error.to_string();
    match error {
        CommitError::Again(_) | CommitError::Ended(_) => Failure::Again(text),
        CommitError::Late(_) => Failure::Late(text),
        CommitError::Damaged { .. } => Failure::Damaged(text),
    }
}
