//! What the server here wants of its host: rows that come, are kept, go to files, and are sent.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::hint::black_box;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use treadle_reactor::awake;
use treadle_shuffle::{
    Adopted, ConnectionId, FromServer, GroupId, Limit, Place, Push, ReadPiece, Refusal, Sent,
    ServerEffect, ServerEvent, ServerId, ShuffleId, Storage, Tally, ToMaster, ToSend, ToServer,
    Verdict,
};

use crate::Callbacks;
use crate::disk::Begun;
use crate::incoming::open;
use crate::machines::{Machines, RowsToSend, SELF, SMALL_PIECE, Step, Stored};
use crate::run::Loaded;
use crate::stored::Batches;

/// Up to so many batches, the invariants are verified after each event.
const EACH: usize = 64;

/// How many small pieces are fetched from memory at once.
const READ_AHEAD: usize = 32;

/// What is read together goes from one group to one reader.
fn are_together(one: &ToSend, next: &ToSend) -> bool {
    (one.to, one.shuffle, one.group) == (next.to, next.shuffle, next.group)
}

impl Machines {
    pub(super) fn tell_server(&mut self, event: ServerEvent, callbacks: &dyn Callbacks) {
        let mut effects = Vec::new();
        let handled = self.server.handle(event, awake::now(), &mut effects);
        if let Err(error) = handled {
            self.after.log.push(error.to_string());
        }
        if cfg!(debug_assertions) && self.is_verified() {
            assert_eq!(self.server.check(), Ok(()));
        }
        let mut rows = Vec::new();
        for effect in effects {
            match effect {
                ServerEffect::Send(send) => rows.push(send),
                effect => {
                    self.send_all(&mem::take(&mut rows));
                    self.serve(effect, callbacks);
                }
            }
        }
        self.send_all(&rows);
    }

    /// Whether the invariants are verified after this event. That takes the longer the more batches there are,
    /// so it is done the more rarely.
    fn is_verified(&mut self) -> bool {
        let batches: usize = self.batches.values().map(Batches::len).sum();
        self.handled += 1;
        self.handled.is_multiple_of(1 + batches / EACH)
    }

    fn serve(&mut self, effect: ServerEffect, callbacks: &dyn Callbacks) {
        match effect {
            ServerEffect::Reply { to, message } => self.answer(to, message),
            ServerEffect::Admit { from: SELF, push } => {
                let bytes = self.batch(&push);
                let batch = bytes.and_then(|bytes| open(&push, &bytes).map(|table| (bytes, table)));
                let from = SELF;
                self.steps.push_back(Step::Arrived { from, push, batch });
            }
            ServerEffect::Admit { from, push } => match self.incoming.admit(from, push) {
                Ok(Some(batch)) => {
                    self.steps.push_back(Step::Arrived { from, push, batch });
                }
                Ok(None) => {}
                Err(error) => {
                    let line = format!("cannot receive rows of a shuffle: {error}");
                    self.after.log.push(line);
                }
            },
            ServerEffect::Store {
                shuffle,
                group,
                batch,
            } => {
                if let Some(arrived) = self.arrived.take() {
                    self.stats.stored += arrived.0.len() as u64;
                    self.usage(shuffle).stored += arrived.0.len() as u64;
                    let of_group = self.batches.entry((shuffle, group)).or_default();
                    of_group.insert(batch, arrived);
                }
            }
            ServerEffect::Drop {
                shuffle,
                group,
                batch,
            } => {
                if let Entry::Occupied(mut of_group) = self.batches.entry((shuffle, group)) {
                    let removed = of_group.get_mut().remove(batch);
                    self.after.garbage.extend(removed.map(|(bytes, _)| bytes));
                    if of_group.get().is_empty() {
                        of_group.remove();
                    }
                }
            }
            ServerEffect::Spill {
                run,
                shuffle,
                group,
                storage,
                batches,
                tenant,
            } => {
                let of_group = self.batches.get(&(shuffle, group));
                let batches = batches.into_iter().filter_map(|id| {
                    let (bytes, table) = of_group?.get(id)?;
                    Some((id, bytes.clone(), table.clone()))
                });
                let batches: Vec<_> = batches.collect();
                let ids = batches.iter().map(|&(id, ..)| (shuffle, group, id));
                let ids: Vec<Stored> = ids.collect();
                self.in_runs.extend(ids.iter().map(|&stored| (stored, run)));
                self.runs.insert(run, ids);
                let inner = &self.inner;
                let is_begun = match (storage, &mut self.remote) {
                    (Storage::Remote, Some(remote)) => remote.spill(inner, run, shuffle, batches),
                    _ => self.disk.spill(inner, run, (shuffle, tenant), batches),
                };
                if !is_begun {
                    let written = Err("a thread for files could not start".into());
                    self.spilled(run, 0, written);
                }
            }
            ServerEffect::DropRun(run) => {
                self.forget_run(run);
                match self.remote_of(run) {
                    Some(remote) => remote.remove(run),
                    None => self.disk.remove(run),
                }
            }
            ServerEffect::LeaveRun(run) => {
                self.forget_run(run);
                if let Some(remote) = self.remote_of(run) {
                    remote.leave(run);
                }
            }
            ServerEffect::WriteInventory {
                shuffle,
                group,
                number,
                inventory,
                runs,
            } => {
                let (copy, described) = ((shuffle, group), (inventory, runs));
                let inner = &self.inner;
                let is_begun = self
                    .remote
                    .as_mut()
                    .is_some_and(|remote| remote.write_inventory(inner, number, copy, described));
                if !is_begun {
                    let written = Err("a thread for objects could not start".into());
                    self.inventory_written(copy, number, written);
                }
            }
            ServerEffect::ReadInventory {
                shuffle,
                group,
                first,
                name,
            } => {
                let copy = (shuffle, group);
                let inner = &self.inner;
                let remote = self.remote.as_mut();
                if !remote.is_some_and(|remote| remote.read_inventory(inner, first, copy, name)) {
                    self.inventory_read(copy, first, Err(0));
                }
            }
            ServerEffect::Load {
                load,
                run,
                partition,
                maps,
                tenant,
            } => {
                let is_over = Arc::clone(self.loading.entry(load).or_default());
                let part = (partition, maps);
                let begun = match self.remote_of(run) {
                    Some(remote) if remote.load(load, run, part) => Begun::Asked,
                    Some(_) => Begun::Failed,
                    None => self.disk.load((load, is_over), run, part, tenant),
                };
                match begun {
                    Begun::Asked => {}
                    Begun::Busy => {
                        let busy = ServerEvent::Unloaded { load };
                        self.steps.push_back(Step::Server(busy));
                    }
                    Begun::Failed => self.loaded(load, run, None),
                    Begun::Nothing => self.loaded(load, run, Some(Vec::new())),
                }
            }
            ServerEffect::Forget { load } => {
                if let Some(is_over) = self.loading.remove(&load) {
                    is_over.store(true, Ordering::Release);
                }
                self.loaded.retain(|&(other, _), _| other != load);
            }
            ServerEffect::Send(send) => self.send_all(&[send]),
            ServerEffect::Measure { most } => self.after.most = Some(most),
            ServerEffect::Tell { to, message } => self.tell_copy(to, message),
            ServerEffect::Disconnect(connection) => self.incoming.end(connection),
            ServerEffect::Dismiss { link, reason } => {
                callbacks.dismissed(link, reason);
                self.after.has_told = true;
            }
            ServerEffect::Report { link, message } => {
                if let ToMaster::Sealed {
                    shuffle,
                    group,
                    verdict: Verdict::Complete,
                    ..
                } = message
                    && let Some((partitions, sizes)) = self.server.sizes(shuffle, group)
                {
                    let measured = ToMaster::Measured {
                        shuffle,
                        group,
                        partitions,
                        sizes,
                    };
                    self.tell_master(link, measured, callbacks);
                }
                self.tell_master(link, message, callbacks);
            }
        }
    }

    /// A run was written, or could not be.
    pub(crate) fn spilled(&mut self, run: u64, bytes: u64, written: Result<(), Arc<str>>) {
        match written {
            Ok(()) => self.stats.spilled += bytes,
            Err(_) => self.forget_run(run),
        }
        let event = ServerEvent::Spilled { run, written };
        self.steps.push_back(Step::Server(event));
    }

    /// An inventory was written, or could not be.
    pub(crate) fn inventory_written(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        number: u64,
        written: Result<Arc<str>, Arc<str>>,
    ) {
        let event = ServerEvent::InventoryWritten {
            shuffle,
            group,
            number,
            written,
        };
        self.steps.push_back(Step::Server(event));
    }

    /// An inventory was read, or could not be: then so many objects were opened.
    pub(crate) fn inventory_read(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        first: u64,
        found: Result<Adopted, u64>,
    ) {
        for (run, batches) in (first + 1..).zip(found.iter().flat_map(|found| &found.runs)) {
            let ids = batches.iter().map(|&(id, ..)| (shuffle, group, id));
            let ids: Vec<Stored> = ids.collect();
            self.in_runs.extend(ids.iter().map(|&stored| (stored, run)));
            self.runs.insert(run, ids);
        }
        let event = ServerEvent::InventoryRead {
            shuffle,
            group,
            first,
            found,
        };
        self.steps.push_back(Step::Server(event));
    }

    fn forget_run(&mut self, run: u64) {
        for stored in self.runs.remove(&run).unwrap_or_default() {
            // Another run may have it by now.
            if self.in_runs.get(&stored) == Some(&run) {
                self.in_runs.remove(&stored);
            }
        }
    }

    /// Reads of a device take too long, or do not any more.
    pub(crate) fn limited(&mut self, disk: usize, limits: Vec<Limit>) {
        let limited = ServerEvent::Limited { disk, limits };
        self.steps.push_back(Step::Server(limited));
    }

    /// The devices of these runs do nothing.
    pub(crate) fn stuck(&mut self, runs: BTreeSet<u64>) {
        self.steps.push_back(Step::Server(ServerEvent::Stuck(runs)));
    }

    /// A run was read.
    pub(crate) fn loaded(&mut self, load: u64, run: u64, loaded: Option<Loaded>) {
        if !self.loading.contains_key(&load) {
            return;
        }
        let pieces = loaded.as_ref();
        let pieces = pieces.map(|loaded| loaded.iter().map(|(piece, _)| *piece).collect());
        if let Some(loaded) = loaded {
            let bytes = loaded.iter().map(|(piece, _)| piece.stored());
            self.stats.loaded += bytes.sum::<u64>();
            self.loaded.insert((load, run), loaded);
        }
        let event = ServerEvent::Loaded { load, run, pieces };
        self.steps.push_back(Step::Server(event));
    }

    fn loaded_piece(&self, name: (u64, u64), piece: &ReadPiece) -> Option<&Bytes> {
        let loaded = self.loaded.get(&name)?;
        let at = loaded.binary_search_by_key(&piece.batch, |(piece, _)| piece.batch);
        Some(&loaded[at.ok()?].1)
    }

    /// Calls `take` with each piece: memory that has it, and where it is in that. `None`: one is not here.
    fn each_piece<'a>(
        &'a self,
        (load, shuffle, group): (u64, ShuffleId, GroupId),
        pieces: &[Sent],
        mut take: impl FnMut(&'a Bytes, Range<usize>),
    ) -> Option<()> {
        let batches = self.batches.get(&(shuffle, group)).map(Batches::rows);
        let batches = batches.unwrap_or_default();
        let mut next = 0;
        for Sent {
            piece,
            place,
            offset,
        } in pieces
        {
            if let Place::Run(run) = place {
                let loaded = self.loaded_piece((load, *run), piece)?;
                take(loaded, 0..loaded.len());
                continue;
            }
            // Both are in order: hardly any batch has to be searched for.
            if batches.get(next).is_none_or(|(id, _)| *id != piece.batch) {
                next = batches
                    .binary_search_by_key(&piece.batch, |(id, _)| *id)
                    .ok()?;
            }
            let start = *offset as usize;
            take(&batches[next].1, start..start + piece.stored() as usize);
            next += 1;
        }
        Some(())
    }

    /// The rows of pieces that a reader asked for. Small ones are in one piece of memory: to copy them
    /// takes less time than to count who uses each batch. Another process does not notice.
    pub(super) fn rows_of(
        &self,
        of: (u64, ShuffleId, GroupId),
        pieces: &[Sent],
        to: ConnectionId,
    ) -> Option<Vec<Bytes>> {
        let bytes: u64 = pieces.iter().map(|sent| sent.piece.stored()).sum();
        let is_small = to != SELF && pieces.len() > 1 && bytes <= SMALL_PIECE * pieces.len() as u64;
        let mut joined = Vec::new();
        if is_small && joined.try_reserve_exact(bytes as usize).is_ok() {
            let mut all = Vec::with_capacity(pieces.len());
            self.each_piece(of, pieces, |bytes, range| all.push(&bytes[range]))?;
            for some in all.chunks(READ_AHEAD) {
                // They are far from each other in memory. The processor fetches all of them at once.
                let first = some.iter().filter_map(|rows| rows.first());
                black_box(first.fold(0, |sum, byte| sum ^ byte));
                for rows in some {
                    joined.extend_from_slice(rows);
                }
            }
            return Some(vec![self.held.charge(joined.into())]);
        }
        let mut rows = Vec::with_capacity(pieces.len());
        self.each_piece(of, pieces, |bytes, range| rows.push(bytes.slice(range)))?;
        Some(rows)
    }

    /// The same for several reads of a group, whose pieces are all small and in memory: each batch is looked into
    /// once. `None`: they are not.
    fn rows_of_all(&self, all: &[ToSend]) -> Option<Vec<Bytes>> {
        let first = all.first()?;
        let of_group = self.batches.get(&(first.shuffle, first.group))?.rows();
        let is_small = |send: &ToSend| {
            let mut pieces = send.pieces.iter();
            let bytes: u64 = pieces.clone().map(|sent| sent.piece.stored()).sum();
            let are_here = pieces.all(|sent| !matches!(sent.place, Place::Run(_)));
            let is_it = are_here && bytes <= SMALL_PIECE * send.pieces.len() as u64;
            (send.to != SELF && is_it).then_some(bytes as usize)
        };
        let sizes = all.iter().map(is_small).collect::<Option<Vec<usize>>>()?;
        let mut joined: Vec<Vec<u8>> = Vec::with_capacity(all.len());
        for size in sizes {
            let mut rows = Vec::new();
            rows.try_reserve_exact(size).ok()?;
            joined.push(rows);
        }
        let mut rest: Vec<&[Sent]> = all.iter().map(|send| &send.pieces[..]).collect();
        for some in of_group.chunks(READ_AHEAD) {
            // They are far from each other in memory. The processor fetches all of them at once.
            let near = rest.first()?.iter().zip(some);
            let near = near.filter_map(|(sent, (_, rows))| rows.get(sent.offset as usize));
            black_box(near.fold(0, |sum, byte| sum ^ byte));
            for (id, rows) in some {
                for (rest, joined) in rest.iter_mut().zip(&mut joined) {
                    if let [sent, after @ ..] = *rest
                        && sent.piece.batch == *id
                    {
                        let start = sent.offset as usize;
                        joined.extend_from_slice(
                            rows.get(start..start + sent.piece.stored() as usize)?,
                        );
                        *rest = after;
                    }
                }
            }
        }
        let are_all = rest.iter().all(|rest| rest.is_empty());
        let joined = joined.into_iter();
        are_all.then(|| joined.map(|rows| self.held.charge(rows.into())).collect())
    }

    /// Sends rows to readers.
    fn send_all(&mut self, all: &[ToSend]) {
        for some in all.chunk_by(are_together) {
            let together = match some.len() {
                1 => None,
                _ => self.rows_of_all(some),
            };
            let mut together = together.map(Vec::into_iter);
            for send in some {
                let rows = match &mut together {
                    Some(together) => together.next().map(|rows| vec![rows]),
                    None => {
                        let of = (send.load, send.shuffle, send.group);
                        self.rows_of(of, &send.pieces, send.to)
                    }
                };
                let pieces = send.pieces.iter().map(|sent| sent.piece);
                let pieces: Vec<ReadPiece> = pieces.collect();
                let tally: Tally = pieces.iter().map(ReadPiece::tally).sum();
                self.send_rows(
                    send.to,
                    (send.read, send.load),
                    tally.narrow(),
                    pieces,
                    rows,
                );
            }
        }
    }

    fn answer(&mut self, to: ConnectionId, message: FromServer) {
        match to {
            SELF => self.steps.push_back(Step::Reply((message, Vec::new()))),
            _ => self.incoming.reply(to, &message),
        }
    }

    fn send_rows(
        &mut self,
        to: ConnectionId,
        (read, load): (u64, u64),
        tally: Tally,
        pieces: Vec<ReadPiece>,
        rows: Option<Vec<Bytes>>,
    ) {
        let sent = Step::Server(ServerEvent::Sent { load });
        let Some(rows) = rows else {
            self.steps.push_back(sent);
            let line = "the rows of a piece that a reader asked for are not here: a bug of the shuffle plane";
            self.after.log.push(line.into());
            let reason = Refusal::Damaged;
            return self.answer(to, FromServer::Unread { read, reason });
        };
        let message = FromServer::Rows {
            read,
            tally,
            pieces,
        };
        if to == SELF {
            // From now on they are the task's.
            self.steps.extend([Step::Reply((message, rows)), sent]);
        } else if let Some(peer) = self.incoming.peer(to) {
            self.after.rows.push(RowsToSend {
                to,
                peer: peer.clone(),
                load,
                message,
                pieces: rows,
            });
        } else {
            self.steps.push_back(sent);
        }
    }

    /// Sends a message of the server here to one that is to have another copy: with a batch from memory,
    /// or from a file.
    fn tell_copy(&mut self, to: ServerId, message: ToServer) {
        let mut batch = None;
        if let ToServer::Push(push) = &message {
            let Some((_, me)) = self.server.governor(push.shuffle) else {
                return;
            };
            let group = (push.shuffle, push.group.at(me));
            let stored = (group.0, group.1, push.batch);
            let of_group = self.batches.get(&group);
            if let Some((bytes, _)) = of_group.and_then(|batches| batches.get(push.batch)) {
                batch = Some(bytes.clone());
            } else if let Some(&run) = self.in_runs.get(&stored) {
                let is_begun = match self.remote_of(run) {
                    Some(remote) => remote.restore(run, to, *push),
                    None => self.disk.restore(run, to, *push),
                };
                if !is_begun {
                    self.unreached(to);
                }
                return;
            } else {
                // It was dropped meanwhile, since its attempt did not win: the machine knows.
                return;
            }
        }
        self.send_copy(to, &message, batch);
    }

    /// A batch was read from a file for another copy. `None`: it could not be.
    pub(crate) fn restored(&mut self, to: ServerId, push: Push, batch: Option<Bytes>) {
        match batch {
            Some(batch) => self.send_copy(to, &ToServer::Push(push), Some(batch)),
            None => {
                let Some((link, me)) = self.server.governor(push.shuffle) else {
                    return;
                };
                let message = ToMaster::Damaged {
                    shuffle: push.shuffle,
                    group: push.group.at(me),
                };
                self.reports.push((link, message));
            }
        }
    }

    fn send_copy(&mut self, to: ServerId, message: &ToServer, batch: Option<Bytes>) {
        self.stats.copied += batch.as_ref().map_or(0, |batch| batch.len() as u64);
        if !self.outgoing.send(to, message, batch) {
            self.unreached(to);
        }
    }
}
