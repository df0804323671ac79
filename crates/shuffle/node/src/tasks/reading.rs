//! Reads: rows of partitions are fetched, and their digests computed.

use std::ops::Range;
use std::time::Instant;

use treadle_shuffle::{FromServer, Generation, MapRange, ReadError, ReaderEvent, ShuffleId};

use super::{Came, Next, Reading, count, micros};
use crate::callbacks::Stopwatch;
use crate::machines::{Machines, Step};
use crate::packing::unpacked;
use crate::read_rows::{ReadRows, digest_of};
use crate::{Activity, Failure, Inner, Plane, Waiter};

impl Machines {
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
}

impl Plane {
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
