//! A worker process: the three machines, and what the host around them keeps: bytes by their names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_shuffle::{
    BatchId, ConnectionId, Fetch, FromServer, Gathered, GroupId, MapRange, Place, Push, ReadError,
    ReadPiece, Reader, ReaderEffect, ReaderEvent, Sent, Server, ServerEffect, ServerEvent,
    ServerId, ShuffleId, Storage, Tally, Tenant, ToSend, ToServer, Transfer, TransferError, Writer,
    WriterEffect, WriterEvent,
};

use crate::data::{Batch, tally};
use crate::engine::Up;
use crate::running::Running;
use crate::store::{CopyName, Described};
use crate::tasks::{Failure, Rows, Task, Value};
use crate::world::{Item, Pid, World};
use treadle_sim_kernel::Link;
use treadle_types::Runs;

pub(super) type Content = Vec<(BatchId, Batch)>;
type BatchName = (ShuffleId, GroupId, BatchId);
/// What was read from a run for a partition.
type Found = Vec<(ReadPiece, Vec<u64>)>;

pub(super) struct Process {
    pub(super) id: ServerId,
    /// Where it is in the network.
    pub(super) node: u32,
    /// The master of its application. `None`: it is a server of any.
    pub(super) head: Option<usize>,
    pub(super) is_alive: bool,
    pub(super) server: Server,
    pub(super) writer: Writer,
    pub(super) reader: Reader,
    pub(super) up: Link,
    pub(super) down: Link,
    pub(super) connections: BTreeMap<ServerId, ConnectionId>,
    pub(super) tasks: BTreeMap<(Task, u64), Running>,
    pub(super) next_read: u64,
    pub(super) reads: BTreeMap<u64, (Task, u64)>,
    /// When they began.
    pub(super) begun: BTreeMap<u64, Duration>,
    /// What came last for a read.
    pub(super) rows: BTreeMap<u64, Rows>,
    /// What came for a read from groups before the last one.
    pub(super) kept: BTreeMap<u64, Rows>,
    /// Groups whose rows the task of a transfer is to gather next, and those whose rows it gathers.
    wanted: BTreeMap<Transfer, Vec<(GroupId, Runs)>>,
    gathering: BTreeSet<(Transfer, GroupId)>,
    arenas: BTreeMap<(Transfer, GroupId), Vec<Batch>>,
    /// What was gathered, and the writer was not told.
    gathered: Vec<(Transfer, GroupId, Gathered)>,
    /// Reads that have come, and have not begun.
    fetches: BTreeMap<ConnectionId, Vec<Fetch>>,
    /// What has just arrived.
    pub(super) incoming: Option<Batch>,
    /// It says nothing to who sent what has just arrived.
    pub(super) is_mute: bool,
    store: BTreeMap<BatchName, Batch>,
    /// Files that are being written, and files.
    writing: BTreeMap<u64, Content>,
    pub(super) runs: BTreeMap<u64, Content>,
    /// Those of both that are in the remote store, and inventories: the numbers of their objects.
    pub(super) remote: BTreeMap<u64, u64>,
    /// Inventories that are being written.
    pub(super) describing: BTreeMap<u64, (CopyName, Described)>,
    /// Runs at a disk that does nothing, and until when.
    pub(super) stuck: BTreeMap<u64, Duration>,
    loading: BTreeSet<u64>,
    loaded: BTreeMap<(u64, u64), Found>,
    /// Until when nothing can be written.
    pub(super) disk_fails_until: Duration,
    pub(super) timer: Option<Duration>,
}

impl Process {
    pub(super) fn new(
        id: ServerId,
        head: Option<usize>,
        reader: Tenant,
        config: &treadle_shuffle::Config,
    ) -> Self {
        let server = match head {
            Some(_) => Server::new(id, config.clone()),
            None => Server::of_any(config.clone()),
        };
        Self {
            id,
            node: id.node,
            head,
            is_alive: true,
            server,
            writer: Writer::new(config.clone()),
            reader: Reader::new(reader, config.clone()),
            up: Link::default(),
            down: Link::default(),
            connections: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_read: 0,
            reads: BTreeMap::new(),
            begun: BTreeMap::new(),
            rows: BTreeMap::new(),
            kept: BTreeMap::new(),
            wanted: BTreeMap::new(),
            gathering: BTreeSet::new(),
            arenas: BTreeMap::new(),
            gathered: Vec::new(),
            fetches: BTreeMap::new(),
            incoming: None,
            is_mute: false,
            store: BTreeMap::new(),
            writing: BTreeMap::new(),
            runs: BTreeMap::new(),
            remote: BTreeMap::new(),
            describing: BTreeMap::new(),
            stuck: BTreeMap::new(),
            loading: BTreeSet::new(),
            loaded: BTreeMap::new(),
            disk_fails_until: Duration::ZERO,
            timer: None,
        }
    }

    /// A batch of a transfer, unless it is not needed any more.
    pub(super) fn gathered(&self, push: &Push) -> Option<Batch> {
        let transfer = Transfer {
            shuffle: push.shuffle,
            map: push.batch.map,
            attempt: push.batch.attempt,
        };
        // All copies of a group get the same batches.
        let arenas = self.arenas.iter();
        let mut same =
            arenas.filter(|((of, group), _)| *of == transfer && group.epoch == push.group.epoch);
        let exact = self.arenas.get(&(transfer, push.group));
        let batches = exact.or_else(|| same.next().map(|(_, batches)| batches))?;
        batches.get(push.batch.number as usize).cloned()
    }

    /// The rows of a group are not needed any more. False: nobody has them, and nobody gathers them.
    fn free(&mut self, transfer: Transfer, group: GroupId) -> bool {
        let name = (transfer, group);
        let mut is_there = self.arenas.remove(&name).is_some() || self.gathering.contains(&name);
        self.gathered
            .retain(|(transfer, group, _)| (*transfer, *group) != name);
        if let Some(wanted) = self.wanted.get_mut(&transfer) {
            let before = wanted.len();
            wanted.retain(|(wanted, _)| *wanted != group);
            is_there |= wanted.len() < before;
        }
        is_there
    }

    /// A batch that is stored here, for another copy of its group.
    pub(super) fn stored(&self, push: &Push) -> Option<Batch> {
        let first = push.group.at(ServerId::default());
        let copies = self
            .store
            .range((push.shuffle, first, BatchId::default())..);
        let copies = copies.map(|((shuffle, group, _), _)| (*shuffle, *group));
        let copy = copies
            .filter(|(shuffle, group)| (*shuffle, group.epoch) == (push.shuffle, first.epoch))
            .map(|(_, group)| group)
            .next();
        let in_memory = copy.and_then(|copy| self.store.get(&(push.shuffle, copy, push.batch)));
        let mut in_files = self.runs.values().flatten().filter(|(id, batch)| {
            let (shuffle, epoch) = (batch.header.shuffle, batch.header.epoch);
            *id == push.batch && (shuffle, epoch) == (push.shuffle, push.group.epoch)
        });
        let found = in_memory.or_else(|| in_files.next().map(|(_, batch)| batch));
        found.cloned()
    }

    /// What is left, in the end.
    pub(super) fn leftovers(&self) -> Option<String> {
        let kept = [
            ("batches in memory", self.store.len()),
            ("files", self.runs.len() + self.writing.len()),
            ("objects of the remote store", self.remote.len()),
            ("inventories", self.describing.len()),
            ("groups to gather", self.wanted.len() + self.gathering.len()),
            ("batches of transfers", self.arenas.len()),
            ("reads of tasks", self.reads.len()),
            ("answers to reads", self.rows.len()),
            ("reads with the rows of some groups", self.kept.len()),
            ("reads of files", self.loading.len()),
            ("runs that were read", self.loaded.len()),
            ("tasks", self.tasks.len()),
            ("shuffles", usize::from(!self.server.is_empty())),
            ("transfers", usize::from(!self.writer.is_empty())),
            ("reads of the machine", usize::from(!self.reader.is_empty())),
            ("bytes", self.server.resident() as usize),
        ];
        let kept = kept.iter().find(|(_, count)| *count > 0)?;
        Some(format!("{:?} keeps {} {}", self.id, kept.1, kept.0))
    }
}

impl World {
    /// An event for the server of a process, and what it wants done.
    pub(super) fn server(&mut self, pid: Pid, event: ServerEvent) -> Result<(), String> {
        let now = self.kernel.now();
        let mut effects = Vec::new();
        let process = &mut self.procs[pid];
        if !process.is_alive {
            return Ok(());
        }
        let result = process.server.handle(event, now, &mut effects);
        result.map_err(|error| format!("{:?} refuses: {error}", process.id))?;
        let check = process.server.check();
        check.map_err(|broken| format!("{:?} is broken: {broken}", process.id))?;
        for effect in effects {
            self.serve(pid, effect)?;
        }
        self.set_timer(pid);
        Ok(())
    }

    fn serve(&mut self, pid: Pid, effect: ServerEffect) -> Result<(), String> {
        let process = &mut self.procs[pid];
        match effect {
            ServerEffect::Reply { to, message } => {
                if !process.is_mute || !matches!(message, FromServer::Refused { .. }) {
                    self.reply(to, message, None);
                }
            }
            ServerEffect::Admit { from, push } => self.admit(from, push),
            ServerEffect::Store {
                shuffle,
                group,
                batch,
            } => {
                let stored = process.incoming.clone().ok_or("nothing has arrived")?;
                process.store.insert((shuffle, group, batch), stored);
                self.summary.batches += 1;
            }
            ServerEffect::Drop {
                shuffle,
                group,
                batch,
            } => {
                let dropped = process.store.remove(&(shuffle, group, batch));
                dropped.ok_or_else(|| format!("{batch:?} is dropped, and not there"))?;
            }
            ServerEffect::Spill {
                run,
                shuffle,
                group,
                storage,
                batches,
                ..
            } => {
                let content = batches.into_iter().map(|id| {
                    let batch = process.store.get(&(shuffle, group, id)).cloned();
                    Ok((
                        id,
                        batch.ok_or(format!("{id:?} is to be written, and not there"))?,
                    ))
                });
                let content = content.collect::<Result<_, String>>()?;
                process.writing.insert(run, content);
                self.summary.spills += 1;
                let slowest = match storage {
                    Storage::Local => 1_000,
                    Storage::Remote => {
                        process.remote.insert(run, self.store.number());
                        self.summary.uploads += 1;
                        self.plan.store.ok_or("there is no remote store")?.slow
                    }
                };
                let time = self.kernel.random.micros(50, slowest);
                self.kernel.schedule(time, Item::Spilled(pid, run));
            }
            ServerEffect::DropRun(run) => {
                let whole = process.runs.remove(&run).is_some();
                let begun = process.writing.remove(&run).is_some();
                let begun = begun || process.describing.remove(&run).is_some();
                // One that is being written may become whole, and is removed then.
                let object = process.remote.remove(&run);
                if let Some(object) = object {
                    self.store.remove(object);
                }
                if !whole && !begun && object.is_none() {
                    return Err(format!("run {run} is dropped, and not there"));
                }
            }
            ServerEffect::LeaveRun(run) => {
                process.runs.remove(&run);
                let left = process.remote.remove(&run);
                left.ok_or_else(|| format!("run {run} is left, and not there"))?;
            }
            ServerEffect::WriteInventory {
                shuffle,
                group,
                number,
                inventory,
                runs,
            } => self.write_inventory(pid, (shuffle, group), number, (inventory, runs))?,
            ServerEffect::ReadInventory {
                shuffle,
                group,
                first,
                name,
            } => self.read_inventory(pid, (shuffle, group), first, &name)?,
            ServerEffect::Load {
                load,
                run,
                partition,
                maps,
                ..
            } => {
                process.loading.insert(load);
                let store = self
                    .plan
                    .store
                    .filter(|_| process.remote.contains_key(&run));
                let slowest = store.map_or(500, |store| store.slow);
                let time = self.kernel.random.micros(20, slowest);
                let item = Item::Loaded(pid, (load, run), partition, maps);
                self.kernel.schedule(time, item);
            }
            ServerEffect::Forget { load } => {
                process.loading.remove(&load);
                process.loaded.retain(|&(other, _), _| other != load);
            }
            ServerEffect::Measure { .. } => unreachable!("no process here has a limit"),
            ServerEffect::Tell { to, message } => {
                self.summary.fills += u64::from(matches!(message, ToServer::Adopt { .. }));
                self.request(pid, to, message);
            }
            ServerEffect::Report { link, message } => match self.links.get(&link) {
                Some(link) => self.up_as(pid, (link.head, link.name), Up::Master(message)),
                None => self.up(pid, Up::Master(message)),
            },
            ServerEffect::Send(ToSend {
                to,
                read,
                load,
                shuffle,
                group,
                partition,
                pieces,
            }) => {
                let mut rows = Vec::new();
                for &Sent { piece, place, .. } in &pieces {
                    let found = match place {
                        Place::Run(run) => {
                            let loaded = process.loaded.get(&(load, run)).into_iter().flatten();
                            let mut loaded = loaded.filter(|(other, _)| *other == piece);
                            loaded.next().map(|(_, rows)| rows)
                        }
                        _ => {
                            let batch = process.store.get(&(shuffle, group, piece.batch));
                            batch.and_then(|batch| batch.pieces.get(&partition))
                        }
                    };
                    let found = found.ok_or_else(|| format!("{piece:?} is sent, and not there"))?;
                    rows.push((piece.batch.map, found.clone()));
                }
                let pieces: Vec<ReadPiece> = pieces.into_iter().map(|sent| sent.piece).collect();
                let tally: Tally = pieces.iter().map(ReadPiece::tally).sum();
                let message = FromServer::Rows {
                    read,
                    tally: tally.narrow(),
                    pieces,
                };
                self.reply(to, message, Some(rows));
                self.sending(pid, to, load);
            }
            ServerEffect::Disconnect(connection) => self.close(connection),
            ServerEffect::Dismiss { link, .. } => self.dismiss(pid, link),
        }
        Ok(())
    }

    /// A disk of a process does nothing for so long.
    pub(super) fn stick(&mut self, pid: Pid, length: Duration) -> Result<(), String> {
        let until = self.kernel.now() + length;
        let process = &mut self.procs[pid];
        let runs = process.runs.keys().chain(process.writing.keys());
        let runs: BTreeSet<u64> = runs.copied().collect();
        process.stuck = runs.iter().map(|&run| (run, until)).collect();
        self.kernel.schedule(length, Item::Unstuck(pid));
        self.server(pid, ServerEvent::Stuck(runs))
    }

    pub(super) fn spilled(&mut self, pid: Pid, run: u64) -> Result<(), String> {
        let now = self.kernel.now();
        if let Some(&until) = self.procs[pid].stuck.get(&run) {
            self.kernel.schedule_at(until, Item::Spilled(pid, run));
            return Ok(());
        }
        let process = &mut self.procs[pid];
        let store = self
            .plan
            .store
            .filter(|_| process.remote.contains_key(&run));
        let is_written = match store {
            Some(store) => !self.kernel.random.chance(store.refuses),
            None => now >= process.disk_fails_until,
        };
        if !is_written {
            process.remote.remove(&run);
        }
        if let Some(content) = process.writing.remove(&run)
            && is_written
        {
            if let Some(&object) = process.remote.get(&run) {
                self.store.put(object, content.clone());
            }
            process.runs.insert(run, content);
        }
        self.summary.full_disks += u64::from(!is_written);
        let written = is_written.then_some(()).ok_or_else(|| "full".into());
        self.server(pid, ServerEvent::Spilled { run, written })
    }

    pub(super) fn run_loaded(
        &mut self,
        pid: Pid,
        (load, run): (u64, u64),
        partition: u32,
        maps: Option<MapRange>,
    ) -> Result<(), String> {
        if let Some(&until) = self.procs[pid].stuck.get(&run) {
            let item = Item::Loaded(pid, (load, run), partition, maps);
            self.kernel.schedule_at(until, item);
            return Ok(());
        }
        let mut is_read = !self.kernel.random.chance(self.plan.unreadable);
        let object = self.procs[pid].remote.get(&run).copied();
        let store = self.plan.store.filter(|_| object.is_some());
        let mut is_altered = false;
        if let Some(store) = store {
            is_read &= !self.kernel.random.chance(store.loses);
            is_read &= object.is_none_or(|object| self.store.has(object));
            is_altered = self.kernel.random.chance(store.alters);
        }
        let process = &mut self.procs[pid];
        if !process.loading.contains(&load) {
            return Ok(());
        }
        self.summary.damages += u64::from(!is_read || is_altered);
        self.summary.loads += 1;
        self.summary.ranged += u64::from(maps.is_some());
        let content = process.runs.get(&run).filter(|_| is_read);
        let mut found = content.map(|content| {
            let is_in = |id: &BatchId| maps.is_none_or(|maps| maps.contains(id.map));
            let content = content.iter().filter(|(id, _)| is_in(id));
            let found = content.filter_map(|(id, batch)| {
                let piece = batch.table.find(partition)?;
                let piece = ReadPiece::new(*id, &piece);
                Some((piece, batch.pieces[&partition].clone()))
            });
            found.collect::<Found>()
        });
        if is_altered
            && let Some((_, rows)) = found.iter_mut().flatten().next()
            && let Some(row) = rows.first_mut()
        {
            *row ^= 1;
        }
        let pieces = found.as_ref();
        let pieces = pieces.map(|found| found.iter().map(|(piece, _)| *piece).collect());
        if let Some(found) = found {
            process.loaded.insert((load, run), found);
        }
        self.server(pid, ServerEvent::Loaded { load, run, pieces })
    }

    /// An event for the writer of a process, and what it wants done.
    pub(super) fn writer(&mut self, pid: Pid, event: WriterEvent) -> Result<(), String> {
        let now = self.kernel.now();
        let mut effects = Vec::new();
        let process = &mut self.procs[pid];
        if !process.is_alive {
            return Ok(());
        }
        let result = process.writer.handle(event, now, &mut effects);
        result.map_err(|error| format!("the writer of {:?} refuses: {error}", process.id))?;
        let check = process.writer.check();
        check.map_err(|broken| format!("the writer of {:?} is broken: {broken}", process.id))?;
        for effect in effects {
            self.write(pid, effect)?;
        }
        self.set_timer(pid);
        Ok(())
    }

    fn write(&mut self, pid: Pid, effect: WriterEffect) -> Result<(), String> {
        match effect {
            WriterEffect::Gather {
                transfer,
                group,
                partitions,
            } => {
                let wanted = self.procs[pid].wanted.entry(transfer).or_default();
                wanted.push((group, partitions));
                let time = self.kernel.random.micros(20, 500);
                self.kernel.schedule(time, Item::Gather(pid, transfer));
            }
            WriterEffect::Send { to, message } => {
                let is_several = matches!(message, ToServer::Pushes { .. });
                self.summary.together += u64::from(is_several);
                self.request(pid, to, message);
            }
            WriterEffect::Free { transfer, group } => {
                if !self.procs[pid].free(transfer, group) {
                    return Err(format!("{transfer:?} {group:?} is freed, and not there"));
                }
            }
            WriterEffect::Done(receipt) => {
                let transfer = receipt.transfer;
                let shares = receipt.shares.iter();
                let reused = shares.filter(|share| share.holder != transfer.attempt);
                self.summary.reused += reused.count() as u64;
                self.summary.transfers += 1;
                self.end_task(pid, transfer_task(transfer), Ok(Value::Receipt(receipt)));
            }
            WriterEffect::Failed { transfer, error } => {
                let text = error.to_string();
                self.summary.late += u64::from(matches!(error, TransferError::Late(_)));
                if self.plan.stays && matches!(error, TransferError::Unreachable { .. }) {
                    return Err(format!("a late attempt does not end by name: {text}"));
                }
                let failure = match error {
                    TransferError::Ended(_) | TransferError::Unreachable { .. } => {
                        Failure::GivenBack(text)
                    }
                    _ => Failure::Raised(text),
                };
                self.end_task(pid, transfer_task(transfer), Err(failure));
            }
            WriterEffect::Report(message) => self.up(pid, Up::Master(message)),
        }
        Ok(())
    }

    /// The task of a transfer gathers all that is wanted by now at once.
    pub(super) fn gather(&mut self, pid: Pid, transfer: Transfer) -> Result<(), String> {
        let process = &mut self.procs[pid];
        let mut seen = Runs::new();
        for (group, partitions) in process.wanted.remove(&transfer).unwrap_or_default() {
            if !partitions.is_disjoint(&seen) {
                return Err(format!("{transfer:?} gathers rows twice, for {group:?}"));
            }
            seen = seen.union(&partitions);
            process.gathering.insert((transfer, group));
            let time = self.kernel.random.micros(20, 500);
            let item = Item::Gathered(pid, transfer, group, partitions);
            self.kernel.schedule(time, item);
        }
        Ok(())
    }

    /// The host has put rows into batches.
    pub(super) fn gathered(
        &mut self,
        pid: Pid,
        transfer: Transfer,
        group: GroupId,
        partitions: &Runs,
    ) -> Result<(), String> {
        let source = self.sources.get(&transfer.shuffle);
        let source = source.ok_or("no such shuffle")?;
        let batches = source.batches(transfer, group, partitions, self.plan.batch);
        let sizes = batches.iter().map(|b| (b.header.tally, b.header.length()));
        let gathered = Gathered {
            batches: sizes.collect(),
        };
        let process = &mut self.procs[pid];
        process.gathering.remove(&(transfer, group));
        process.arenas.insert((transfer, group), batches);
        if self.plan.together {
            process.gathered.push((transfer, group, gathered));
            if process.gathered.len() == 1 {
                let time = self.kernel.random.micros(0, 300);
                self.kernel.schedule(time, Item::Together(pid));
            }
            return Ok(());
        }
        self.writer(
            pid,
            WriterEvent::Gathered {
                transfer,
                group,
                gathered,
            },
        )
    }

    /// What was gathered in a short while is told to the writer together.
    pub(super) fn gathered_together(&mut self, pid: Pid) -> Result<(), String> {
        // Servers are of two releases.
        let ids = self.places.values().map(|&server| self.procs[server].id);
        let new = ids.filter(|id| id.node % 2 == 1);
        for server in new.collect::<Vec<_>>() {
            self.writer(pid, WriterEvent::TakesTogether(server))?;
        }
        let parts = std::mem::take(&mut self.procs[pid].gathered);
        self.writer(pid, WriterEvent::GatheredTogether(parts))
    }

    /// A read waits a moment for others of its reader.
    pub(super) fn fetched(&mut self, pid: Pid, from: ConnectionId, fetch: Fetch) {
        let process = &mut self.procs[pid];
        process.fetches.entry(from).or_default().push(fetch);
        let time = self.kernel.random.micros(0, 300);
        self.kernel.schedule(time, Item::Fetches(pid));
    }

    /// Reads that have come in a short while are begun together.
    pub(super) fn fetch_together(&mut self, pid: Pid) -> Result<(), String> {
        for (from, fetches) in std::mem::take(&mut self.procs[pid].fetches) {
            if self.connections[&from].is_open {
                self.summary.neighbours += u64::from(fetches.len() > 1);
                self.server(pid, ServerEvent::Fetches { from, fetches })?;
            }
        }
        Ok(())
    }

    /// An event for the reader of a process, and what it wants done.
    pub(super) fn reader(&mut self, pid: Pid, event: ReaderEvent) -> Result<(), String> {
        let now = self.kernel.now();
        let mut effects = Vec::new();
        let process = &mut self.procs[pid];
        if !process.is_alive {
            return Ok(());
        }
        let result = process.reader.handle(event, now, &mut effects);
        result.map_err(|error| format!("the reader of {:?} refuses: {error}", process.id))?;
        let check = process.reader.check();
        check.map_err(|broken| format!("the reader of {:?} is broken: {broken}", process.id))?;
        for effect in effects {
            match effect {
                ReaderEffect::Send { to, message } => self.request(pid, to, message),
                ReaderEffect::Keep { read } => self.keep(pid, read),
                ReaderEffect::Return { read, .. } => self.returned(pid, read)?,
                ReaderEffect::Failed { read, error } => {
                    let text = error.to_string();
                    let failure = match error {
                        ReadError::Superseded(_)
                        | ReadError::Ended(_)
                        | ReadError::Unreachable { .. } => Failure::GivenBack(text),
                        _ => Failure::Raised(text),
                    };
                    self.procs[pid].rows.remove(&read);
                    self.procs[pid].kept.remove(&read);
                    if let Some(task) = self.procs[pid].reads.remove(&read) {
                        self.end_task(pid, task, Err(failure));
                    }
                }
                ReaderEffect::Report(message) => self.up(pid, Up::Master(message)),
            }
        }
        self.set_timer(pid);
        Ok(())
    }

    /// A server has answered.
    pub(super) fn replied(
        &mut self,
        pid: Pid,
        from: ServerId,
        message: FromServer,
        rows: Option<Rows>,
        partition: Option<u32>,
    ) -> Result<(), String> {
        let (FromServer::Rows { read, .. } | FromServer::Unread { read, .. }) = message else {
            self.server(pid, ServerEvent::Peer(message.clone()))?;
            return self.writer(pid, WriterEvent::Server { from, message });
        };
        let process = &mut self.procs[pid];
        let id = Reader::read_of(read);
        if !process.reads.contains_key(&id) {
            // Its task is gone, and with it who would look at the rows.
            return Ok(());
        }
        let rows = rows.unwrap_or_default();
        let digests = rows.iter().map(|(map, rows)| {
            let partition = partition.unwrap_or_default();
            tally(*map, partition, rows).digest as u32
        });
        let computed = digests.collect();
        process.rows.insert(id, rows);
        self.reader(
            pid,
            ReaderEvent::Server {
                from,
                message,
                computed,
            },
        )
    }

    /// The partition that a read of a process is of.
    pub(super) fn partition_of(&self, pid: Pid, read: u64) -> Option<u32> {
        match self.procs[pid].reads.get(&Reader::read_of(read))? {
            (Task::Unpack(_, partition), _) => Some(*partition),
            _ => None,
        }
    }

    fn set_timer(&mut self, pid: Pid) {
        let process = &mut self.procs[pid];
        let due = [
            process.server.next_deadline(),
            process.writer.next_deadline(),
            process.reader.next_deadline(),
        ];
        let Some(due) = due.into_iter().flatten().min() else {
            return;
        };
        if process.timer.is_none_or(|timer| due < timer) {
            process.timer = Some(due);
            self.kernel.schedule_at(due, Item::Timer(pid, due));
        }
    }

    pub(super) fn timer(&mut self, pid: Pid, at: Duration) -> Result<(), String> {
        let process = &mut self.procs[pid];
        if process.timer != Some(at) {
            return Ok(());
        }
        process.timer = None;
        let now = self.kernel.now();
        let is_due = |deadline: Option<Duration>| deadline.is_some_and(|at| at <= now);
        if is_due(self.procs[pid].server.next_deadline()) {
            self.server(pid, ServerEvent::Tick)?;
        }
        if is_due(self.procs[pid].writer.next_deadline()) {
            self.writer(pid, WriterEvent::Tick)?;
        }
        if is_due(self.procs[pid].reader.next_deadline()) {
            self.reader(pid, ReaderEvent::Tick)?;
        }
        self.set_timer(pid);
        Ok(())
    }
}

fn transfer_task(transfer: Transfer) -> (Task, u64) {
    let task = Task::Transfer(transfer.shuffle, transfer.map);
    (task, transfer.attempt.0)
}
