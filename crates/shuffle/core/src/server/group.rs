//! What a server holds of one group.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::block::Table;
use crate::server::counts::Counts;
use crate::server::upload::Upload;
use crate::{AttemptId, BatchId, ConnectionId, Expected, Place, Push, Tally, Transfer};

/// A group: its batches by attempt, and how many rows each partition has.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) partitions: Runs,
    /// In the order of the maps.
    pub(super) attempts: BTreeMap<(u32, AttemptId), Attempt>,
    /// What all batches together have. Also batches in runs that did not win: whoever reads the runs finds
    /// those as well.
    pub(super) counts: Counts,
    /// What a sealed group is read from, until its batches change.
    pub(super) index: Option<Vec<Indexed>>,
    /// Batches in memory that are not being written, in the order in which they came.
    pub(super) idle: BTreeMap<u64, BatchId>,
    pub(super) next: u64,
    /// Bytes of those.
    pub(super) idle_bytes: u64,
    /// Files that are whole.
    pub(super) runs: BTreeSet<u64>,
    /// Whether some of them are in files of this server.
    pub(super) has_files: bool,
    pub(super) upload: Upload,
    /// How often its inventory could not be written.
    pub(super) upload_tries: u32,
    /// What won, once it was compared.
    pub(super) sealed: Option<Expected>,
    pub(super) role: Role,
    /// It could not be written to a file: it takes no more.
    pub(super) is_poisoned: bool,
    /// Bytes of all batches that came, and whether the master knows that they are many.
    pub(super) stored: u64,
    pub(super) is_full: bool,
}

/// What the plan says of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Role {
    /// Batches are let in.
    pub(super) takes: bool,
    /// It is the copy that others are filled from.
    pub(super) is_first: bool,
    /// There is no other copy.
    pub(super) is_sole: bool,
    /// Rows of its partitions may be in other groups.
    pub(super) has_siblings: bool,
}

/// What one attempt of a map has pushed.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) batches: BTreeMap<u32, Batch>,
    pub(super) tally: Tally,
    /// Another attempt relies on it.
    pub(super) is_pinned: bool,
    /// It did not win, or was abandoned: only what is in files, or on its way there, is left.
    pub(super) is_lost: bool,
    /// Who pushed its first batch: nobody else abandons it.
    pub(super) from: Option<ConnectionId>,
}

#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tally: Tally,
    pub(super) length: u64,
    /// Position in `idle`, if it is there.
    pub(super) arrival: u64,
    /// As long as it is in memory: it is a part of the batch.
    pub(super) table: Option<Table>,
    pub(super) place: Place,
}

/// A batch in memory of a sealed group, as readers find it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Indexed {
    pub(super) batch: BatchId,
    pub(super) table: Table,
    pub(super) place: Place,
    pub(super) has_won: bool,
}

impl GroupState {
    pub(super) fn new(partitions: Runs, stripe: u32) -> Self {
        Self {
            counts: Counts::new(&partitions, stripe),
            partitions,
            attempts: BTreeMap::new(),
            index: None,
            idle: BTreeMap::new(),
            next: 0,
            idle_bytes: 0,
            runs: BTreeSet::new(),
            has_files: false,
            upload: Upload::Not,
            upload_tries: 0,
            sealed: None,
            role: Role {
                takes: true,
                is_first: true,
                is_sole: true,
                has_siblings: false,
            },
            is_poisoned: false,
            stored: 0,
            is_full: false,
        }
    }

    pub(super) fn batch(&self, id: BatchId) -> Option<&Batch> {
        let attempt = self.attempts.get(&(id.map, id.attempt))?;
        attempt.batches.get(&id.number)
    }

    pub(super) fn batch_mut(&mut self, id: BatchId) -> Option<&mut Batch> {
        self.index = None;
        let attempt = self.attempts.get_mut(&(id.map, id.attempt))?;
        attempt.batches.get_mut(&id.number)
    }

    /// The attempt of a map that won, if the group is sealed and the map has rows here.
    pub(super) fn winner(&self, map: u32) -> Option<AttemptId> {
        self.sealed.as_ref()?.winners.get(map)
    }

    /// What readers look through.
    pub(super) fn indexed(&mut self) -> &[Indexed] {
        if self.index.is_none() {
            self.index = Some(self.make_index());
        }
        self.index.as_deref().unwrap_or_default()
    }

    pub(super) fn make_index(&self) -> Vec<Indexed> {
        let all = self.batches().filter_map(|(batch, stored)| {
            Some(Indexed {
                batch,
                table: stored.table.clone()?,
                place: stored.place,
                has_won: self.winner(batch.map) == Some(batch.attempt),
            })
        });
        all.collect()
    }

    /// Whether a table has only partitions of the group.
    pub(super) fn covers(&self, table: &Table) -> bool {
        // Those of most groups are one range.
        let (first, last) = table.bounds();
        if let &[(start, end)] = self.partitions.ranges() {
            let range = start..end;
            return table.is_empty()
                || (range.contains(&first.into()) && range.contains(&last.into()));
        }
        let mut pieces = table.pieces();
        pieces.all(|piece| self.partitions.contains(u64::from(piece.partition)))
    }

    /// Adds a batch that is in memory.
    pub(super) fn add(&mut self, push: &Push, table: Table) {
        let id = push.batch;
        self.index = None;
        self.counts.add(id.map, &table);
        let attempt = self.attempts.entry((id.map, id.attempt)).or_default();
        attempt.tally.add(&push.tally);
        self.stored += push.length;
        let batch = Batch {
            tally: push.tally,
            length: push.length,
            arrival: self.next,
            table: Some(table),
            place: Place::Memory,
        };
        attempt.batches.insert(id.number, batch);
        self.make_idle(id, push.length, self.next);
        self.next += 1;
    }

    pub(super) fn make_idle(&mut self, id: BatchId, length: u64, arrival: u64) {
        self.idle.insert(arrival, id);
        self.idle_bytes += length;
    }

    /// All batches in memory of the attempt that has `one` are being written from now on. Adds them to
    /// `batches`, and returns their length.
    pub(super) fn spill_attempt(
        &mut self,
        one: BatchId,
        run: u64,
        batches: &mut Vec<BatchId>,
    ) -> u64 {
        let mut bytes = 0;
        self.index = None;
        let attempt = self.attempts.get_mut(&(one.map, one.attempt));
        let all = attempt.into_iter().flat_map(|state| &mut state.batches);
        for (&number, batch) in all {
            if batch.place == Place::Memory {
                self.idle.remove(&batch.arrival);
                batch.place = Place::Spilling(run);
                bytes += batch.length;
                batches.push(BatchId { number, ..one });
            }
        }
        self.idle_bytes -= bytes;
        bytes
    }

    /// Batches are in a run, or were not written. Returns what is to be dropped from memory.
    pub(super) fn spilled(
        &mut self,
        batches: Vec<BatchId>,
        run: Option<u64>,
    ) -> Vec<(BatchId, u64)> {
        let mut dropped = Vec::new();
        for id in batches {
            let Some(batch) = self.batch_mut(id) else {
                continue;
            };
            let (length, arrival) = (batch.length, batch.arrival);
            if let Some(run) = run {
                batch.place = Place::Run(run);
                batch.table = None;
                dropped.push((id, length));
                continue;
            }
            batch.place = Place::Memory;
            self.make_idle(id, length, arrival);
            let attempt = self.attempts.get(&(id.map, id.attempt));
            if attempt.is_some_and(|attempt| attempt.is_lost) {
                dropped.extend(self.lose_attempt(id.map, id.attempt));
            }
        }
        dropped
    }

    /// One batch in memory of each attempt that has others in files: those came before, and went.
    pub(super) fn rest(&self) -> Vec<BatchId> {
        let mut rest = Vec::new();
        for (&(map, attempt), state) in &self.attempts {
            let is_here = |(_, batch): &(&u32, &Batch)| batch.place == Place::Memory;
            let mut batches = state.batches.iter();
            if let Some((&number, _)) = batches.clone().find(is_here)
                && !batches.all(|batch| is_here(&batch))
            {
                rest.push(BatchId {
                    map,
                    attempt,
                    number,
                });
            }
        }
        rest
    }

    /// Removes the batches of an attempt that are in memory and not being written. Those in files stay,
    /// and stay counted, until the group goes. Returns what was removed.
    pub(super) fn lose_attempt(&mut self, map: u32, id: AttemptId) -> Vec<(BatchId, u64)> {
        self.index = None;
        let Some(attempt) = self.attempts.get_mut(&(map, id)) else {
            return Vec::new();
        };
        attempt.is_lost = true;
        let transfer = Transfer {
            map,
            attempt: id,
            ..Transfer::default()
        };
        let in_memory = attempt.batches.iter();
        let in_memory = in_memory.filter(|(_, batch)| batch.place == Place::Memory);
        let numbers: Vec<u32> = in_memory.map(|(&number, _)| number).collect();
        let mut removed = Vec::with_capacity(numbers.len());
        for number in numbers {
            let Some(batch) = attempt.batches.remove(&number) else {
                continue;
            };
            attempt.tally.subtract(&batch.tally);
            if let Some(table) = &batch.table {
                self.counts.subtract(map, table);
            }
            if self.idle.remove(&batch.arrival).is_some() {
                self.idle_bytes -= batch.length;
            }
            removed.push((transfer.batch(number), batch.length));
        }
        if attempt.batches.is_empty() {
            self.attempts.remove(&(map, id));
        }
        removed
    }

    /// The batches in memory, and their lengths.
    pub(super) fn resident(&self) -> impl Iterator<Item = (BatchId, u64)> + '_ {
        self.batches()
            .filter(|(_, batch)| !matches!(batch.place, Place::Run(_)))
            .map(|(id, batch)| (id, batch.length))
    }

    /// All batches, in the order of their maps.
    pub(super) fn batches(&self) -> impl Iterator<Item = (BatchId, &Batch)> {
        self.attempts.iter().flat_map(|(&(map, attempt), state)| {
            state.batches.iter().map(move |(&number, batch)| {
                let id = BatchId {
                    map,
                    attempt,
                    number,
                };
                (id, batch)
            })
        })
    }
}
