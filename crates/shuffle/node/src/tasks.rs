//! Tasks of this worker that wait: transfers, barriers and reads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_reactor::thread::lock;
use treadle_rows::Wanted;
use treadle_shuffle::{
    Commit, CommitError, FromServer, Generation, GroupId, LinkId, MapRange, Plan, ReadError,
    ReaderEvent, Receipt, ServerId, ShuffleId, ToMaster, Transfer, TransferError, Usage,
    WriterEvent,
};
use treadle_types::Runs;

use crate::callbacks::Stopwatch;
use crate::machines::{Gathered, Machines, Step};
use crate::packing::unpacked;
use crate::read_rows::{ReadRows, digest_of};
use crate::{Activity, ArenaMemory, Failure, Inner, POLL, Plane, Source, Waiter};

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
    /// Pushes the rows of a map to the servers of their partitions, and waits until they have them. `again`:
    /// the map may have run before. `replaces`: its rows count even if others of the map were committed, and all
    /// of the shuffle is made again then. `interrupted` is called about every 25 ms.
    ///
    /// # Errors
    /// [`Failure`]. The servers drop the rows of the transfer.
    pub fn transfer(
        &self,
        transfer: Transfer,
        (again, replaces): (bool, bool),
        source: &dyn Source,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Receipt, Failure> {
        let inner = &self.0;
        inner.serve_connections()?;
        let waiter = Waiter::current();
        let is_new = inner.with(|machines| {
            let transfers = &mut machines.tasks.transfers;
            let is_new = !transfers.contains_key(&transfer);
            if is_new {
                transfers.insert(transfer, Running::new(&waiter));
                let event = WriterEvent::Begin {
                    transfer,
                    again,
                    replaces,
                };
                machines.steps.push_back(Step::Writer(event));
            }
            is_new
        });
        if !is_new {
            return Err(Failure::Failed(format!("{transfer:?} runs already")));
        }
        let watch = Stopwatch::new(&*inner.callbacks);
        let (began, mut gathering) = (Instant::now(), Duration::ZERO);
        let outcome = inner.push(transfer, source, &mut gathering, (&waiter, interrupted));
        let pushing = began.elapsed().saturating_sub(gathering);
        if let Ok(receipt) = &outcome {
            watch.done(Activity::Push, transfer.shuffle, receipt.tally().bytes);
        }
        inner.with(|machines| {
            let usage = machines.usage(transfer.shuffle);
            usage.gathering += micros(gathering);
            usage.pushing += micros(pushing);
            count(usage, &outcome);
            let running = machines.tasks.transfers.remove(&transfer);
            if running.is_some_and(|running| running.outcome.is_none()) {
                let event = WriterEvent::Cancel(transfer);
                machines.steps.push_back(Step::Writer(event));
            }
        });
        outcome
    }

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
            count(usage, &outcome);
        });
        outcome
    }

    /// Gets the rows of a partition, of all maps or of some: pieces in the order of their maps. `width` is that
    /// of the agreed rows in bytes; 0: rows are variable.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn read(
        &self,
        shuffle: ShuffleId,
        generation: Generation,
        partition: u32,
        maps: Option<MapRange>,
        width: usize,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<ReadRows, Failure> {
        let inner = &self.0;
        inner.serve_connections()?;
        let waiter = Waiter::current();
        let read = inner.with(|machines| {
            let read = machines.tasks.next();
            machines.tasks.reads.insert(read, Reading::new(&waiter));
            machines.steps.push_back(Step::Reader(ReaderEvent::Begin {
                read,
                shuffle,
                generation,
                partition,
                maps,
            }));
            read
        });
        let watch = Stopwatch::new(&*inner.callbacks);
        let began = Instant::now();
        let outcome = inner.fetch(read, (partition, width), &waiter, interrupted);
        let (mut reading, bytes) = inner.with(|machines| {
            let reading = machines.tasks.reads.remove(&read);
            let reading = reading.unwrap_or_else(|| Reading::new(&waiter));
            let bytes = reading.kept.bytes() + reading.rows.bytes();
            let usage = machines.usage(shuffle);
            usage.reading += micros(began.elapsed());
            count(usage, &outcome);
            if outcome.is_ok() {
                usage.reads += 1;
                usage.read_bytes += bytes;
            }
            if reading.outcome.is_none() {
                machines
                    .steps
                    .push_back(Step::Reader(ReaderEvent::Cancel(read)));
            }
            (reading, bytes)
        });
        outcome?;
        if !reading.kept.is_empty() {
            reading.rows.append(&mut reading.kept);
            // No map has rows in two groups.
            reading.rows.sort();
        }
        watch.done(Activity::Read, shuffle, bytes);
        Ok(reading.rows)
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

    /// Gathers the rows that the writer asks for, until the transfer ends. Adds how long that took to
    /// `gathering`.
    fn push(
        &self,
        transfer: Transfer,
        source: &dyn Source,
        gathering: &mut Duration,
        (waiter, interrupted): (&Waiter, &mut dyn FnMut() -> bool),
    ) -> Result<Receipt, Failure> {
        loop {
            let next = self.wait(waiter, interrupted, |machines| {
                let me = machines.me;
                if let Some(outcome) = machines.tasks.transfers.get(&transfer)?.outcome.clone() {
                    let failed = |error| transfer_failed(machines, &error);
                    return Some(Next::Over(outcome.map_err(failed)));
                }
                let running = machines.tasks.transfers.get_mut(&transfer)?;
                if running.wanted.is_empty() {
                    return None;
                }
                let wanted = std::mem::take(&mut running.wanted).into_iter();
                let wanted = wanted.map(|(group, partitions)| {
                    let server = group.server;
                    let is_other = server != me;
                    let is_near = is_other && machines.outgoing.is_near(server);
                    (group, partitions, is_near)
                });
                Some(Next::Work(wanted.collect::<Vec<_>>()))
            })?;
            let wanted = match next {
                Next::Over(outcome) => {
                    let (receipt, plan) = outcome?;
                    return compared(receipt, &plan, source);
                }
                Next::Work(wanted) => wanted,
            };
            let groups = wanted.iter().map(|(group, partitions, _)| Wanted {
                epoch: group.epoch,
                partitions: partitions.clone(),
            });
            let groups: Vec<Wanted> = groups.collect();
            let allocate = |group: usize, len| ArenaMemory::new(len, wanted[group].2);
            let watch = Stopwatch::new(&*self.callbacks);
            let began = Instant::now();
            let arenas = source.gather(transfer, &groups, &allocate);
            *gathering += began.elapsed();
            let arenas = arenas?;
            let bytes = arenas.iter().map(|arena| arena.memory.len() as u64);
            watch.done(Activity::Gather, transfer.shuffle, bytes.sum());
            if arenas.len() != wanted.len() {
                return Err(Failure::Failed(
                    "the source did not return one arena for each group".into(),
                ));
            }
            self.with(|machines| {
                for ((group, ..), arena) in wanted.iter().zip(arenas) {
                    let gathered = Gathered {
                        bytes: self.held.charge(arena.memory.into_bytes()),
                        batches: arena.batches,
                    };
                    machines.gathered(transfer, *group, gathered);
                }
            });
        }
    }

    /// Computes the digests of rows that come, until the read ends.
    fn fetch(
        &self,
        read: u64,
        (partition, width): (u32, usize),
        waiter: &Waiter,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        loop {
            let next = self.wait(waiter, interrupted, |machines| {
                if let Some(outcome) = machines.tasks.reads.get(&read)?.outcome.clone() {
                    let failed = |error| read_failed(machines, &error);
                    return Some(Next::Over(outcome.map_err(failed)));
                }
                let reading = machines.tasks.reads.get_mut(&read)?;
                reading.came.pop_front().map(Next::Work)
            })?;
            let Came {
                from,
                message,
                rows,
            } = match next {
                Next::Over(outcome) => return outcome,
                Next::Work(came) => came,
            };
            let FromServer::Rows { pieces, .. } = &message else {
                continue;
            };
            let rows = unpacked(pieces, rows, &self.held)
                .map_err(|error| Failure::Source(Box::new(error)))?;
            let computed = rows.iter();
            let computed = computed.map(|(piece, rows)| digest_of(piece, rows, partition, width));
            let computed = computed.collect();
            self.with(|machines| {
                if let Some(reading) = machines.tasks.reads.get_mut(&read) {
                    reading.rows = rows;
                }
                let event = ReaderEvent::Server {
                    from,
                    message,
                    computed,
                };
                machines.steps.push_back(Step::Reader(event));
            });
        }
    }
}

/// The receipt, if it counts the rows that the source has for the plan. Servers are compared with receipts, so
/// that a row which a receipt leaves out would be lost unseen.
fn compared(receipt: Receipt, plan: &Plan, source: &dyn Source) -> Result<Receipt, Failure> {
    let (counted, rows) = (receipt.tally().rows, source.count_in(&mut plan.outputs()));
    if counted == rows as u64 {
        return Ok(receipt);
    }
    let groups = plan.groups.iter().map(|group| {
        let mut shares = receipt.shares.iter();
        let share = shares.find(|share| share.group == group.id);
        let rows = share.map_or(0, |share| share.tally.rows);
        let ranges = group.partitions.ranges();
        format!("{rows} in {:?} of {ranges:?}", group.id)
    });
    let map = receipt.transfer.map;
    Err(Failure::Failed(format!(
        "input {map} has {rows} rows, and its receipt counts {counted}: this is a bug of Treadle. Write it \
         again. By group: {}",
        groups.collect::<Vec<_>>().join("; ")
    )))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Counts what did not end well. Who is interrupted is not needed any more.
fn count<T>(usage: &mut Usage, outcome: &Result<T, Failure>) {
    match outcome {
        Ok(_) | Err(Failure::Interrupted) => {}
        Err(Failure::Again(_) | Failure::Superseded(_)) => usage.again += 1,
        Err(_) => usage.failed += 1,
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

fn transfer_failed(machines: &Machines, error: &TransferError) -> Failure {
    let text = error.to_string();
    let at = |server| machines.with_address(&text, server);
    match *error {
        TransferError::Ended(_) => Failure::Again(text),
        TransferError::Unreachable { server, .. } => Failure::Again(at(server)),
        TransferError::Late(_) => Failure::Late(text),
        TransferError::NoRoom { server, .. } => Failure::NoRoom(at(server)),
        TransferError::Malformed { server, .. } => Failure::Failed(at(server)),
    }
}

fn read_failed(machines: &Machines, error: &ReadError) -> Failure {
    let text = error.to_string();
    let at = |server| machines.with_address(&text, server);
    match *error {
        ReadError::Superseded(_) => Failure::Superseded(text),
        ReadError::Ended(_) => Failure::Again(text),
        ReadError::Unreachable { server, .. } => Failure::Again(at(server)),
        ReadError::Missing { server, .. } => Failure::Damaged(at(server)),
        ReadError::NotAnOutput { .. } => Failure::Failed(text),
    }
}
