//! Reading a partition: its pieces from memory and from runs, those of the winners only, in the order
//! of their maps.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::hint::black_box;
use core::ops::Range;
use core::time::Duration;

use crate::config::Guard;
use crate::server::group::GroupState;
use crate::server::read_queue::Waiting;
use crate::server::shares::{Turn, pause_of};
use crate::server::{ConnectionId, Effects, Place, Sent, Server, ServerEffect, ToSend};
use crate::{
    ApplicationId, Fetch, FromServer, GroupId, Limit, MapRange, ReadPiece, Refusal, ShuffleId,
    Tally, Tenant, ToMaster,
};

/// How many tables are fetched from memory at once.
const READ_AHEAD: usize = 32;

/// So many neighbouring partitions are looked for together, at most.
const TOGETHER: usize = 4;

/// Bytes that a piece takes while it is read, beside its rows: what is known of it, in some lists, and the
/// entry before it in a file. At the published 40,000 maps it is more than rows take.
const PIECE: u64 = 256;

/// A read that waits for runs.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) to: ConnectionId,
    pub(super) fetch: Fetch,
    /// Who reads.
    pub(super) tenant: Tenant,
    /// The group that it is read from.
    pub(super) group: GroupId,
    /// What runs have; `None`: not loaded yet.
    pub(super) loaded: BTreeMap<u64, Option<Vec<ReadPiece>>>,
}

/// What there is of a partition, and what all of it counts: whether it won or not, that is all that came.
#[derive(Debug)]
struct Found {
    pieces: Vec<Sent>,
    all: Tally,
}

/// Where a read looks: two that are neighbours look together.
#[derive(Debug)]
struct Neighbour {
    shuffle: ShuffleId,
    group: GroupId,
    partition: u32,
    is_of_all: bool,
}

impl Neighbour {
    fn of(reading: &Reading) -> Self {
        Self {
            shuffle: reading.fetch.shuffle,
            group: reading.group,
            partition: reading.fetch.partition,
            is_of_all: reading.fetch.maps.is_none(),
        }
    }

    fn is_before(&self, next: &Self) -> bool {
        (self.shuffle, self.group) == (next.shuffle, next.group)
            && self.partition.checked_add(1) == Some(next.partition)
            && self.is_of_all
            && next.is_of_all
    }
}

impl GroupState {
    /// What is in memory for neighbouring partitions.
    fn find(&mut self, partitions: Range<u32>, stripes: Option<MapRange>) -> Vec<Found> {
        let is_in = |map: u32| stripes.is_none_or(|maps| maps.contains(map));
        let indexed = self.indexed();
        let found = partitions.clone().map(|_| Found {
            pieces: Vec::with_capacity(indexed.len()),
            all: Tally::default(),
        });
        let mut found: Vec<Found> = found.collect();
        for some in indexed.chunks(READ_AHEAD) {
            // Tables are far from each other in memory. The processor fetches all of them at once.
            let words = some.iter();
            let words = words.map(|one| one.table.word_near(partitions.start));
            black_box(words.fold(0, |sum, word| sum ^ word));
            for one in some.iter().filter(|one| is_in(one.batch.map)) {
                for piece in one.table.find_all(partitions.clone()) {
                    let at = piece.partition.wrapping_sub(partitions.start);
                    let Some(found) = found.get_mut(at as usize) else {
                        continue;
                    };
                    found.all.add(&piece.tally);
                    if one.has_won || !Guard::Attempt.holds() {
                        found.pieces.push(Sent {
                            piece: ReadPiece::new(one.batch, &piece),
                            place: one.place,
                            offset: piece.offset,
                        });
                    }
                }
            }
        }
        found
    }
}

impl Server {
    /// Somebody wants a partition.
    pub(super) fn fetch(&mut self, to: ConnectionId, fetch: Fetch, effects: &mut Effects) {
        let group = match self.readable(&fetch) {
            Ok(group) => group,
            Err(reason) => return unread(to, fetch.read, reason, effects),
        };
        let tenant = self.reader_of(&fetch);
        let application = tenant.application;
        let (ahead, first) = self.waiting.of(application);
        let has_others = self.waiting.has_others(application);
        if self.has_runs(fetch.shuffle, group) && self.is_limited(application) {
            return self.sleep(to, &fetch, application, effects);
        }
        // Whose reads have no room holds up nobody else.
        let is_next = ahead == 0 && self.has_slot_for(tenant);
        if is_next && self.has_room_for(&fetch, group, self.now) {
            return self.begin_read(to, (fetch, group), effects);
        }
        let turn = Turn::new(ahead, self.now);
        let pause = first
            .filter(|_| has_others)
            .and_then(|first| pause_of((first, ahead), self.now, &self.config));
        let reason = match pause {
            Some(pause) => Refusal::Sleep(pause),
            None if self.waiting.len() >= self.config.parked => Refusal::Busy,
            None => {
                return self.waiting.push(Waiting {
                    to,
                    fetch,
                    tenant,
                    turn,
                });
            }
        };
        unread(to, fetch.read, reason, effects);
    }

    /// Whether a read of an application may begin, as far as the number counts: as many as its part of all, by
    /// priority, and always one. So the reads of one application leave room for those of another.
    fn has_slot_for(&self, tenant: Tenant) -> bool {
        let application = tenant.application;
        let all = self.config.reads.max(1);
        let begun = self.readings.values();
        let begun = begun.filter(|reading| reading.tenant.application == application);
        let own = begun.count();
        if !Guard::Shares.holds() {
            return self.readings.len() < all;
        }
        if own == 0 {
            return true;
        }
        let others = self.readings.values().map(|reading| reading.tenant);
        let others = others.chain(self.waiting.tenants());
        let others = others.filter(|other| other.application != application);
        let others: BTreeMap<_, _> = others
            .map(|other| (other.application, other.weight()))
            .collect();
        let mine = tenant.weight();
        let part = all as u64 * mine / (mine + others.values().sum::<u64>());
        self.readings.len() < all && (own as u64) < part.max(1)
    }

    /// Whether rows of a group are in files.
    fn has_runs(&self, shuffle: ShuffleId, group: GroupId) -> bool {
        let held = self.shuffles.get(&shuffle);
        let state = held.and_then(|held| held.groups.get(&group));
        state.is_some_and(|state| !state.runs.is_empty())
    }

    /// Whether an application has as many loads as it may while a disk is slow. One read is always taken.
    fn is_limited(&self, application: ApplicationId) -> bool {
        let Some(most) = self.limits.most(application, self.now) else {
            return false;
        };
        let (waiting, _) = self.waiting.of(application);
        let open = waiting + self.loads_of(application);
        open >= most.max(1)
    }

    /// The loads of an application that were begun and are not done.
    fn loads_of(&self, application: ApplicationId) -> usize {
        let readings = self.readings.values();
        let readings = readings.filter(|reading| reading.tenant.application == application);
        let loads = readings.flat_map(|reading| reading.loaded.values());
        loads.filter(|pieces| pieces.is_none()).count()
    }

    /// Tells a read to come again when it may be its turn.
    fn sleep(
        &mut self,
        to: ConnectionId,
        fetch: &Fetch,
        application: ApplicationId,
        effects: &mut Effects,
    ) {
        let pause = self.limits.pause(application, self.now, &self.config);
        self.slept += 1;
        unread(to, fetch.read, Refusal::Sleep(pause), effects);
    }

    /// Reads of a disk take too long, or do not any more: reads that wait of who has too many are told to pause.
    pub(super) fn limited(&mut self, disk: usize, limits: Vec<Limit>, effects: &mut Effects) {
        self.limits.set(disk, limits, self.now);
        for application in self.limits.applications() {
            while let (2.., _) = self.waiting.of(application)
                && self.is_limited(application)
                && let Some(last) = self.waiting.pop_last(application)
            {
                self.sleep(last.to, &last.fetch, application, effects);
            }
        }
    }

    /// Whether a read would wait for a disk that does nothing, and another server has the rows, too.
    fn is_elsewhere(&self, state: &GroupState) -> bool {
        let is_stuck = !self.stuck.is_empty() && !state.runs.is_disjoint(&self.stuck);
        is_stuck && !state.role.is_sole
    }

    /// The disks of these runs do nothing, and those of others do.
    pub(super) fn stuck(&mut self, runs: BTreeSet<u64>, effects: &mut Effects) {
        self.set_aside(&runs, effects);
        self.stuck = runs;
        let waits = |reading: &Reading| {
            let held = self.shuffles.get(&reading.fetch.shuffle);
            let state = held.and_then(|held| held.groups.get(&reading.group));
            let mut loaded = reading.loaded.iter();
            let waits = loaded.any(|(run, pieces)| pieces.is_none() && self.stuck.contains(run));
            waits && state.is_some_and(|state| self.is_elsewhere(state))
        };
        let given_up = self.readings.iter().filter(|(_, reading)| waits(reading));
        for load in given_up.map(|(&load, _)| load).collect::<Vec<_>>() {
            self.give_up(load, Refusal::Damaged, effects);
        }
        self.unpark(effects);
        self.relieve(effects);
    }

    /// Too much waits for a disk.
    pub(super) fn unloaded(&mut self, load: u64, effects: &mut Effects) {
        self.give_up(load, Refusal::Busy, effects);
    }

    fn give_up(&mut self, load: u64, reason: Refusal, effects: &mut Effects) {
        let Some(reading) = self.readings.remove(&load) else {
            return;
        };
        self.read_budget.give_back(load);
        effects.push(ServerEffect::Forget { load });
        unread(reading.to, reading.fetch.read, reason, effects);
    }

    /// Who pays for a read: whoever reads. Releases before do not say it.
    fn reader_of(&self, fetch: &Fetch) -> Tenant {
        match fetch.reader {
            Some(reader) if Guard::Readers.holds() => reader,
            _ => self.tenant(fetch.shuffle),
        }
    }

    /// Begins the reads that wait, as many as may be at once: those of the applications that have been
    /// given least, compared with their priorities. Those of one application begin in their order.
    pub(super) fn pump_reads(&mut self, effects: &mut Effects) {
        // Applications whose next read has no room.
        let mut full = BTreeSet::new();
        self.memory.reads_want = 0;
        loop {
            let heads = self.waiting.heads();
            let heads = heads.filter(|(_, waiting)| {
                !full.contains(&waiting.tenant.application) && self.has_slot_for(waiting.tenant)
            });
            // Of those that are equal, the one that came first.
            let next = heads.min_by_key(|(number, waiting)| {
                (self.read.tag(waiting.tenant.application), *number)
            });
            let Some((_, waiting)) = next else {
                return;
            };
            let application = waiting.tenant.application;
            let readable = self.readable(&waiting.fetch);
            if let Ok(group) = readable
                && !self.has_room_for(&waiting.fetch, group, waiting.turn.since)
            {
                full.insert(application);
                let (_, bytes) = self.bytes_of(&waiting.fetch, group);
                self.memory.want_to_read(bytes);
                continue;
            }
            let Some(Waiting { to, fetch, .. }) = self.waiting.pop(application) else {
                return;
            };
            match readable {
                Ok(group) => self.begin_read(to, (fetch, group), effects),
                Err(reason) => unread(to, fetch.read, reason, effects),
            }
        }
    }

    /// The bytes of rows that a read loads or sends, and what it takes of memory: at most a piece of each map
    /// that has rows, and rows of files twice, since they are loaded and put together.
    fn bytes_of(&self, fetch: &Fetch, group: GroupId) -> (u64, u64) {
        let held = self.shuffles.get(&fetch.shuffle);
        let state = held.and_then(|held| held.groups.get(&group));
        state.map_or((0, 0), |state| {
            let stripes = fetch.maps.map(|maps| state.counts.stripes_of(maps));
            let Tally { rows, bytes, .. } = state.counts.of(fetch.partition, stripes);
            let pieces = rows.min(state.attempts.len() as u64);
            let times = if state.runs.is_empty() { 1 } else { 2 };
            (
                bytes,
                bytes.saturating_mul(times).saturating_add(pieces * PIECE),
            )
        })
    }

    /// Whether what a read takes has room beside other reads, in half of what rows may take, and in the process.
    fn has_room_for(&self, fetch: &Fetch, group: GroupId, since: Duration) -> bool {
        let application = self.reader_of(fetch).application;
        let (_, memory) = self.bytes_of(fetch, group);
        let limit = self.memory.limit / 2;
        self.read_budget.has_room(application, memory, limit)
            && self.has_memory_for(application, memory, since)
    }

    fn begin_read(
        &mut self,
        to: ConnectionId,
        (fetch, group): (Fetch, GroupId),
        effects: &mut Effects,
    ) {
        let (bytes, memory) = self.bytes_of(&fetch, group);
        let tenant = self.reader_of(&fetch);
        self.read.serve(tenant, bytes);
        let load = self.next_load;
        self.next_load += 1;
        self.read_budget.take(load, tenant.application, memory);
        self.memory.ledger.grant(memory);
        let reading = Reading {
            to,
            fetch,
            tenant,
            group,
            loaded: BTreeMap::new(),
        };
        self.readings.insert(load, reading);
        self.advance(load, effects);
    }

    fn readable(&self, fetch: &Fetch) -> Result<GroupId, Refusal> {
        let group = self.resolve(fetch.shuffle, fetch.group)?;
        let held = &self.shuffles[&fetch.shuffle];
        let state = &held.groups[&group];
        let is_there = state.partitions.contains(u64::from(fetch.partition));
        let is_now = held.plan.generation == fetch.generation;
        if Guard::Generation.holds() && !(is_there && is_now) {
            return Err(Refusal::Stale(held.plan.generation));
        }
        if state.is_adopting() {
            return Err(Refusal::Busy);
        }
        if state.sealed.is_none() {
            return Err(Refusal::Unsealed);
        }
        if self.is_elsewhere(state) {
            return Err(Refusal::Damaged);
        }
        Ok(group)
    }

    /// A run was read.
    pub(super) fn loaded(
        &mut self,
        load: u64,
        run: u64,
        pieces: Option<Vec<ReadPiece>>,
        effects: &mut Effects,
    ) {
        let Some(reading) = self.readings.get_mut(&load) else {
            return;
        };
        match pieces {
            Some(pieces) => {
                reading.loaded.insert(run, Some(pieces));
                self.advance(load, effects);
            }
            None => self.damage(load, effects),
        }
    }

    /// Loads what is missing, or sends.
    fn advance(&mut self, load: u64, effects: &mut Effects) {
        let Some(reading) = self.readings.get_mut(&load) else {
            return;
        };
        let (shuffle, partition) = (reading.fetch.shuffle, reading.fetch.partition);
        let held = self.shuffles.get_mut(&shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&reading.group)) else {
            return;
        };
        // Whole stripes are read, since those are counted.
        let stripes = reading.fetch.maps.map(|maps| state.counts.stripes_of(maps));
        // A run may have been written meanwhile: what was in memory is there then.
        for &run in &state.runs {
            if reading.loaded.contains_key(&run) {
                continue;
            }
            reading.loaded.insert(run, None);
            effects.push(ServerEffect::Load {
                load,
                run,
                partition,
                maps: stripes,
                tenant: reading.tenant,
            });
        }
        if reading.loaded.values().any(Option::is_none) {
            return;
        }
        match self.are_together {
            true => self.ready.push(load),
            false => self.send(&[load], effects),
        }
    }

    /// Somebody wants partitions, which are looked for together as far as they are neighbours.
    pub(super) fn fetch_together(
        &mut self,
        to: ConnectionId,
        fetches: Vec<Fetch>,
        effects: &mut Effects,
    ) {
        self.are_together = true;
        for fetch in fetches {
            self.fetch(to, fetch, effects);
        }
        self.are_together = false;
        let ready = core::mem::take(&mut self.ready);
        let ready: Vec<(u64, Neighbour)> = ready
            .into_iter()
            .filter_map(|load| Some((load, Neighbour::of(self.readings.get(&load)?))))
            .collect();
        for run in ready.chunk_by(|(_, one), (_, next)| one.is_before(next)) {
            for some in run.chunks(TOGETHER) {
                let loads: Vec<u64> = some.iter().map(|(load, _)| *load).collect();
                self.send(&loads, effects);
            }
        }
    }

    /// Sends what is there of neighbouring partitions of a group, of which all has been loaded.
    fn send(&mut self, loads: &[u64], effects: &mut Effects) {
        let first = loads.first().and_then(|first| self.readings.get(first));
        let Some((first, group)) = first.map(|reading| (reading.fetch, reading.group)) else {
            return;
        };
        let held = self.shuffles.get_mut(&first.shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) else {
            return;
        };
        // Whole stripes are read, since those are counted.
        let stripes = first.maps.map(|maps| state.counts.stripes_of(maps));
        let end = first.partition.saturating_add(loads.len() as u32);
        let found = state.find(first.partition..end, stripes);
        for (&load, found) in loads.iter().zip(found) {
            self.send_found(load, found, effects);
        }
        // Its bytes are in memory until they are sent.
        for &load in loads {
            if self.readings.remove(&load).is_some() {
                effects.push(ServerEffect::Forget { load });
            }
        }
    }

    /// Sends what was found in memory for a read, and what was loaded.
    fn send_found(&mut self, load: u64, found: Found, effects: &mut Effects) {
        let Some(reading) = self.readings.get(&load) else {
            return;
        };
        let held = self.shuffles.get(&reading.fetch.shuffle);
        let Some(state) = held.and_then(|held| held.groups.get(&reading.group)) else {
            return;
        };
        let Found {
            mut pieces,
            mut all,
        } = found;
        for (&run, loaded) in &reading.loaded {
            for &piece in loaded.iter().flatten() {
                all.add(&piece.tally());
                if !Guard::Attempt.holds()
                    || state.winner(piece.batch.map) == Some(piece.batch.attempt)
                {
                    pieces.push(Sent {
                        piece,
                        place: Place::Run(run),
                        offset: 0,
                    });
                }
            }
        }
        let stripes = reading.fetch.maps.map(|maps| state.counts.stripes_of(maps));
        let count = state.counts.of(reading.fetch.partition, stripes);
        if Guard::Receipts.holds() && all.narrow() != count.narrow() {
            return self.damage(load, effects);
        }
        if let Some(maps) = reading.fetch.maps.filter(|_| Guard::Ownership.holds()) {
            pieces.retain(|sent| maps.contains(sent.piece.batch.map));
        }
        if !Guard::Order.holds() {
            pieces.sort_unstable_by_key(|Sent { piece, .. }| {
                let arrival = state.batch(piece.batch).map(|batch| batch.arrival);
                (arrival, piece.batch)
            });
        } else if !reading.loaded.is_empty() {
            // Those of memory are in order.
            pieces.sort_unstable_by_key(|sent| sent.piece.batch);
        }
        effects.push(ServerEffect::Send(ToSend {
            to: reading.to,
            read: reading.fetch.read,
            load,
            shuffle: reading.fetch.shuffle,
            group: reading.group,
            partition: reading.fetch.partition,
            pieces,
        }));
    }

    /// A reader does not want a read any more.
    pub(super) fn cancel_read(&mut self, from: ConnectionId, read: u64, effects: &mut Effects) {
        let is_it = |to: ConnectionId, fetch: &Fetch| (to, fetch.read) == (from, read);
        self.waiting
            .retain(|waiting| !is_it(waiting.to, &waiting.fetch));
        self.drop_readings(effects, |reading| is_it(reading.to, &reading.fetch));
    }

    /// Forgets the reads that have begun and are not sent.
    pub(super) fn drop_readings(
        &mut self,
        effects: &mut Effects,
        mut is_dropped: impl FnMut(&Reading) -> bool,
    ) {
        self.readings.retain(|&load, reading| {
            let is_dropped = is_dropped(reading);
            if is_dropped {
                self.read_budget.give_back(load);
                effects.push(ServerEffect::Forget { load });
            }
            !is_dropped
        });
    }

    /// What is read is not what came, or cannot be read: the rows of the group are to be made again.
    fn damage(&mut self, load: u64, effects: &mut Effects) {
        let Some(reading) = self.readings.remove(&load) else {
            return;
        };
        let (shuffle, group) = (reading.fetch.shuffle, reading.group);
        self.read_budget.give_back(load);
        effects.push(ServerEffect::Forget { load });
        let damaged = ToMaster::Damaged { shuffle, group };
        self.report(shuffle, damaged, effects);
        unread(reading.to, reading.fetch.read, Refusal::Damaged, effects);
    }

    /// The reads of a group that is gone.
    pub(super) fn end_reads(
        &mut self,
        shuffle: ShuffleId,
        group: GroupId,
        reason: &Refusal,
        effects: &mut Effects,
    ) {
        self.waiting.retain(|waiting| {
            let is_of_it = (waiting.fetch.shuffle, waiting.fetch.group) == (shuffle, group);
            if is_of_it {
                unread(waiting.to, waiting.fetch.read, reason.clone(), effects);
            }
            !is_of_it
        });
        let mut unreads = Vec::new();
        self.drop_readings(effects, |reading| {
            let is_of_it = reading.fetch.shuffle == shuffle && reading.group == group;
            if is_of_it {
                unreads.push((reading.to, reading.fetch.read));
            }
            is_of_it
        });
        for (to, read) in unreads {
            unread(to, read, reason.clone(), effects);
        }
    }
}

fn unread(to: ConnectionId, read: u64, reason: Refusal, effects: &mut Effects) {
    let message = FromServer::Unread { read, reason };
    effects.push(ServerEffect::Reply { to, message });
}
