//! Tasks of this worker that wait: transfers, barriers and reads.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
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
use crate::{Activity, Arena, ArenaMemory, Failure, Inner, MapRows, POLL, Plane, Source, Waiter};

/// The reason of tasks that are given back because the worker ends.
const OVER: &str = "the worker ends";
/// Of several maps that are pushed together, so many bytes are gathered before they are sent.
const TOGETHER: usize = 1 << 20;

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

/// A group whose rows are to be gathered.
#[derive(Debug)]
struct Gathering {
    group: GroupId,
    partitions: Runs,
    /// Its server is on this host, and memory can be shared with it.
    is_near: bool,
}

/// Maps that are pushed together.
struct Pushing<'a> {
    maps: &'a [MapRows<'a>],
    /// What came of each, once it has ended.
    outcomes: Vec<Option<Result<Receipt, Failure>>>,
    /// How long their rows were gathered.
    gathering: Duration,
}

/// What is to be done about a map: to gather rows, or to compare its receipt.
type NextOfMap = Next<Vec<Gathering>, (Receipt, Arc<Plan>)>;

impl<'a> Pushing<'a> {
    fn new(maps: &'a [MapRows<'a>]) -> Self {
        Self {
            maps,
            outcomes: maps.iter().map(|_| None).collect(),
            gathering: Duration::ZERO,
        }
    }

    fn is_open(&self) -> bool {
        self.outcomes.iter().any(Option::is_none)
    }

    /// What there is to do, by the positions of maps; `None`: nothing yet.
    fn look(&self, machines: &mut Machines) -> Option<Vec<(usize, NextOfMap)>> {
        let open = self.outcomes.iter().zip(self.maps).enumerate();
        let open = open.filter(|(_, (outcome, _))| outcome.is_none());
        let found = open.filter_map(|(at, (_, map))| Some((at, machines.next_of(map.transfer)?)));
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then_some(found)
    }

    /// What came of all. Those that have not ended fail for this reason.
    fn end(self, reason: &Failure) -> Vec<Result<Receipt, Failure>> {
        let outcomes = self.outcomes.into_iter();
        outcomes
            .map(|outcome| outcome.unwrap_or_else(|| Err(reason.of_all())))
            .collect()
    }
}

impl Machines {
    /// A transfer begins, which this thread waits for. `false`: it runs already.
    fn begin_transfer(&mut self, map: &MapRows<'_>, waiter: &Arc<Waiter>) -> bool {
        let transfer = map.transfer;
        if self.tasks.transfers.contains_key(&transfer) {
            return false;
        }
        self.tasks.transfers.insert(transfer, Running::new(waiter));
        let event = WriterEvent::Begin {
            transfer,
            again: map.again,
            replaces: map.replaces,
        };
        self.steps.push_back(Step::Writer(event));
        true
    }

    /// Nobody waits for a transfer any more. One that has not ended is given up.
    fn end_transfer(&mut self, transfer: Transfer) {
        let running = self.tasks.transfers.remove(&transfer);
        if running.is_some_and(|running| running.outcome.is_none()) {
            let event = WriterEvent::Cancel(transfer);
            self.steps.push_back(Step::Writer(event));
        }
    }

    /// What is to be done about a read, if anything is.
    fn next_of_read(&mut self, read: u64) -> Option<Next<Came, ()>> {
        if let Some(outcome) = self.tasks.reads.get(&read)?.outcome.clone() {
            return Some(Next::Over(
                outcome.map_err(|error| read_failed(self, &error)),
            ));
        }
        let reading = self.tasks.reads.get_mut(&read)?;
        reading.came.pop_front().map(Next::Work)
    }

    /// Nobody waits for a read any more. One that has not ended is given up.
    fn end_read(&mut self, read: u64) -> Option<Reading> {
        let reading = self.tasks.reads.remove(&read)?;
        if reading.outcome.is_none() {
            let event = ReaderEvent::Cancel(read);
            self.steps.push_back(Step::Reader(event));
        }
        Some(reading)
    }

    /// What is to be done about a transfer, if anything is.
    fn next_of(&mut self, transfer: Transfer) -> Option<NextOfMap> {
        let me = self.me;
        if let Some(outcome) = self.tasks.transfers.get(&transfer)?.outcome.clone() {
            return Some(Next::Over(
                outcome.map_err(|error| transfer_failed(self, &error)),
            ));
        }
        let running = self.tasks.transfers.get_mut(&transfer)?;
        if running.wanted.is_empty() {
            return None;
        }
        let wanted = std::mem::take(&mut running.wanted).into_iter();
        let wanted = wanted.map(|(group, partitions)| Gathering {
            group,
            partitions,
            is_near: group.server != me && self.outgoing.is_near(group.server),
        });
        Some(Next::Work(wanted.collect()))
    }
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
        let map = MapRows {
            transfer,
            again,
            replaces,
            source,
        };
        let mut outcomes = self.transfer_all(&[map], interrupted);
        outcomes.pop().unwrap_or(Err(Failure::Interrupted))
    }

    /// Pushes the rows of several maps of a shuffle together, and waits until the servers have them. What came of
    /// each, in their order: one that fails leaves the others alone. Small maps take less time so than one after
    /// the other. The batches of all of them are in memory until the servers have them.
    pub fn transfer_all(
        &self,
        maps: &[MapRows<'_>],
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Vec<Result<Receipt, Failure>> {
        let inner = &self.0;
        let waiter = Waiter::current();
        let mut pushing = Pushing::new(maps);
        if let Err(failure) = inner.serve_connections() {
            return pushing.end(&failure);
        }
        let begun: Vec<bool> = inner.with(|machines| {
            let begin = |map: &MapRows<'_>| machines.begin_transfer(map, &waiter);
            maps.iter().map(begin).collect()
        });
        let is_begun = |at: usize| begun[at];
        for (at, map) in maps.iter().enumerate().filter(|(at, _)| !is_begun(*at)) {
            let text = format!("{:?} runs already", map.transfer);
            pushing.outcomes[at] = Some(Err(Failure::Failed(text)));
        }
        let watch = Stopwatch::new(&*inner.callbacks);
        let began = Instant::now();
        let ended = inner.push(&mut pushing, (&waiter, interrupted));
        let gathering = pushing.gathering;
        let waited = began.elapsed().saturating_sub(gathering);
        let failure = ended.err().unwrap_or(Failure::Interrupted);
        let outcomes = pushing.end(&failure);
        let Some(shuffle) = maps.first().map(|map| map.transfer.shuffle) else {
            return outcomes;
        };
        if outcomes.iter().any(Result::is_ok) {
            let receipts = outcomes.iter().flatten();
            let bytes = receipts.map(|receipt| receipt.tally().bytes);
            watch.done(Activity::Push, shuffle, bytes.sum());
        }
        inner.with(|machines| {
            let usage = machines.usage(shuffle);
            usage.gathering += micros(gathering);
            usage.pushing += micros(waited);
            for at in (0..maps.len()).filter(|&at| is_begun(at)) {
                if let Err(failure) = &outcomes[at] {
                    count(machines.usage(shuffle), failure);
                }
                machines.end_transfer(maps[at].transfer);
            }
        });
        outcomes
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
            if let Err(failure) = &outcome {
                count(usage, failure);
            }
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
        let partitions = partition..partition.saturating_add(1);
        let read = self.read_all(shuffle, generation, partitions, maps, width, interrupted);
        let mut rows = read.map_err(|(_, failure)| failure)?;
        rows.pop().ok_or(Failure::Interrupted)
    }

    /// Gets the rows of neighbouring partitions together, as [`Plane::read`] gets those of one: in their order.
    /// Small ones take less time so. All of them are in memory at once.
    ///
    /// # Errors
    /// A partition whose rows cannot be got, and why. Those of the others are dropped.
    pub fn read_all(
        &self,
        shuffle: ShuffleId,
        generation: Generation,
        partitions: Range<u32>,
        maps: Option<MapRange>,
        width: usize,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<ReadRows>, (u32, Failure)> {
        let inner = &self.0;
        let first = partitions.start;
        inner
            .serve_connections()
            .map_err(|failure| (first, failure))?;
        let waiter = Waiter::current();
        let reads: Vec<u64> = inner.with(|machines| {
            let begin = |partition| {
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
            };
            partitions.clone().map(begin).collect()
        });
        let watch = Stopwatch::new(&*inner.callbacks);
        let began = Instant::now();
        let fetched = inner.fetch(&reads, (first, width), &waiter, interrupted);
        let (all, bytes) = inner.with(|machines| {
            let all = reads.iter().map(|&read| machines.end_read(read));
            let all: Vec<Reading> = all.flatten().collect();
            let bytes = all.iter().map(Reading::bytes).sum::<u64>();
            let usage = machines.usage(shuffle);
            usage.reading += micros(began.elapsed());
            match &fetched {
                Ok(()) => {
                    usage.reads += reads.len() as u64;
                    usage.read_bytes += bytes;
                }
                Err((_, failure)) => count(usage, failure),
            }
            (all, bytes)
        });
        fetched?;
        watch.done(Activity::Read, shuffle, bytes);
        Ok(all.into_iter().map(Reading::into_rows).collect())
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

    /// Gathers the rows that the writer asks for, until all transfers have ended.
    fn push(
        &self,
        pushing: &mut Pushing<'_>,
        (waiter, interrupted): (&Waiter, &mut dyn FnMut() -> bool),
    ) -> Result<(), Failure> {
        while pushing.is_open() {
            let found = self.wait(waiter, interrupted, |machines| pushing.look(machines))?;
            let mut gathered = Vec::new();
            let mut bytes = 0;
            for (at, next) in found {
                let map = &pushing.maps[at];
                let wanted = match next {
                    Next::Over(outcome) => {
                        let outcome = outcome
                            .and_then(|(receipt, plan)| compared(receipt, &plan, map.source));
                        pushing.outcomes[at] = Some(outcome);
                        continue;
                    }
                    Next::Work(wanted) => wanted,
                };
                match self.gather(map, &wanted, &mut pushing.gathering) {
                    Ok(arenas) => {
                        bytes += arenas.iter().map(|arena| arena.memory.len()).sum::<usize>();
                        gathered.push((map.transfer, wanted, arenas));
                    }
                    Err(failure) => pushing.outcomes[at] = Some(Err(failure)),
                }
                // The servers have something to do while the others are gathered.
                if bytes >= TOGETHER {
                    self.gathered(std::mem::take(&mut gathered));
                    bytes = 0;
                }
            }
            self.gathered(gathered);
        }
        Ok(())
    }

    /// Gathers the rows of a map for these groups. Adds how long that took to `gathering`.
    fn gather(
        &self,
        map: &MapRows<'_>,
        wanted: &[Gathering],
        gathering: &mut Duration,
    ) -> Result<Vec<Arena>, Failure> {
        let groups = wanted.iter().map(|wanted| Wanted {
            epoch: wanted.group.epoch,
            partitions: wanted.partitions.clone(),
        });
        let groups: Vec<Wanted> = groups.collect();
        let allocate = |group: usize, len| ArenaMemory::new(len, wanted[group].is_near);
        let watch = Stopwatch::new(&*self.callbacks);
        let began = Instant::now();
        let arenas = map.source.gather(map.transfer, &groups, &allocate);
        *gathering += began.elapsed();
        let arenas = arenas?;
        let bytes = arenas.iter().map(|arena| arena.memory.len() as u64);
        watch.done(Activity::Gather, map.transfer.shuffle, bytes.sum());
        match arenas.len() == wanted.len() {
            true => Ok(arenas),
            false => Err(Failure::Failed(
                "the source did not return one arena for each group".into(),
            )),
        }
    }

    /// The rows of some maps were gathered.
    fn gathered(&self, gathered: Vec<(Transfer, Vec<Gathering>, Vec<Arena>)>) {
        if gathered.is_empty() {
            return;
        }
        let all = gathered.into_iter().flat_map(|(transfer, wanted, arenas)| {
            let arenas = wanted.into_iter().zip(arenas);
            arenas.map(move |(wanted, arena)| {
                let gathered = Gathered {
                    bytes: self.held.charge(arena.memory.into_bytes()),
                    batches: arena.batches,
                };
                (transfer, wanted.group, gathered)
            })
        });
        let all = all.collect();
        self.with(|machines| machines.gathered(all));
    }

    /// Computes the digests of rows that come, until all reads have ended well, or one has not. They are of partitions
    /// that follow the first one.
    fn fetch(
        &self,
        reads: &[u64],
        (first, width): (u32, usize),
        waiter: &Waiter,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), (u32, Failure)> {
        let mut open: Vec<(u32, u64)> = (first..).zip(reads.iter().copied()).collect();
        while !open.is_empty() {
            let found = self.wait(waiter, interrupted, |machines| {
                let next = |&(partition, read): &(u32, u64)| {
                    Some((partition, read, machines.next_of_read(read)?))
                };
                let found: Vec<_> = open.iter().filter_map(next).collect();
                (!found.is_empty()).then_some(found)
            });
            let mut came = Vec::new();
            for (partition, read, next) in found.map_err(|failure| (first, failure))? {
                let failed = |failure| (partition, failure);
                match next {
                    Next::Over(outcome) => {
                        outcome.map_err(failed)?;
                        open.retain(|(_, other)| *other != read);
                    }
                    Next::Work(rows) => {
                        let rows = self.digested(rows, partition, width).map_err(failed)?;
                        came.push((read, rows));
                    }
                }
            }
            if came.is_empty() {
                continue;
            }
            self.with(|machines| {
                for (read, (rows, event)) in came {
                    if let Some(reading) = machines.tasks.reads.get_mut(&read) {
                        reading.rows = rows;
                    }
                    machines.steps.push_back(Step::Reader(event));
                }
            });
        }
        Ok(())
    }

    /// Rows that have come for a partition, and what the reader is told: with their digests.
    fn digested(
        &self,
        came: Came,
        partition: u32,
        width: usize,
    ) -> Result<(ReadRows, ReaderEvent), Failure> {
        let Came {
            from,
            message,
            rows,
        } = came;
        let pieces = match &message {
            FromServer::Rows { pieces, .. } => &pieces[..],
            _ => &[],
        };
        let rows =
            unpacked(pieces, rows, &self.held).map_err(|error| Failure::Source(Box::new(error)))?;
        let computed = rows.iter();
        let computed = computed.map(|(piece, rows)| digest_of(piece, rows, partition, width));
        let event = ReaderEvent::Server {
            from,
            computed: computed.collect(),
            message,
        };
        Ok((rows, event))
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
