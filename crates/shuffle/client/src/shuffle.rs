//! A shuffle of records.

use std::fmt;

use bytes::Bytes;
use treadle_compress::Codec;
use treadle_net::Wait;
use treadle_shuffle::Generation;

use crate::kind::Note;
use crate::{Error, Kind, RawShuffle, Reader, Receipt, Service, Writer};

/// A shuffle: written map by map, then committed, then read partition by partition. Threads may share it.
pub struct Shuffle {
    service: Service,
    raw: RawShuffle,
    partitions: u32,
    copies: u32,
    note: Note,
}

impl Shuffle {
    pub(crate) fn new(
        service: Service,
        raw: RawShuffle,
        partitions: u32,
        copies: u32,
        note: Note,
    ) -> Self {
        Self {
            service,
            raw,
            partitions,
            copies,
            note,
        }
    }

    /// Its number in the service, by which other processes [attach](Service::attach). It is never used again.
    pub fn number(&self) -> u64 {
        self.raw.number()
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// How many maps it has.
    pub fn maps(&self) -> u32 {
        self.raw.maps()
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// At how many servers each row is: fewer than were asked for if there were not so many failure domains.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// What its rows are.
    pub fn kind(&self) -> Kind {
        self.note.kind
    }

    /// How its rows are compressed; `None`: they are not.
    pub fn codec(&self) -> Option<Codec> {
        self.note.codec
    }

    /// What the process that registered it has said of it.
    pub fn note(&self) -> &Bytes {
        &self.note.rest
    }

    /// A writer of a map, which ends with [`Writer::finish`]. Several threads may write several maps.
    ///
    /// That there is no such map is an error of [`Writer::finish`].
    pub fn writer(&self, map: u32) -> Writer<'_> {
        Writer::new(self, map)
    }

    /// Has the servers compare their rows with the receipts, one for each map, and returns the generation, which readers
    /// need. Which run of a map counts is the caller's choice: that of the receipt. Rows of other runs are dropped.
    ///
    /// # Errors
    /// [`Error::Receipts`]: a map has no receipt, or two. [`Error::RowsLost`]: all copies of some rows are lost.
    /// [`Error::LateAttempt`]: it was committed with other rows. [`Error::DamagedRows`]: rows are not those that were
    /// written, although they were made again. [`Error::Refused`] after its end; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn commit(&self, receipts: &[Receipt], wait: &mut Wait<'_>) -> Result<Generation, Error> {
        self.raw.commit(receipts, true, wait)
    }

    /// A reader of what a commit returned, here or elsewhere.
    pub fn reader(&self, generation: Generation) -> Reader<'_> {
        Reader::new(self, generation)
    }

    /// The maps that must run again, since all copies of some of their rows are lost. Empty: none.
    ///
    /// # Errors
    /// [`Error::Refused`] after its end; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn lost(&self, wait: &mut Wait<'_>) -> Result<Vec<u32>, Error> {
        self.raw.lost(wait)
    }

    /// The generation in which all began anew, since a map had returned other rows: rows that were read of an earlier one do
    /// not fit those of a later one. 0: none.
    ///
    /// # Errors
    /// [`Error::Refused`] after its end; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn restarted(&self, wait: &mut Wait<'_>) -> Result<Generation, Error> {
        self.raw.restarted(wait)
    }

    /// Ends it: the servers drop its rows.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has ended; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn finish(self, wait: &mut Wait<'_>) -> Result<(), Error> {
        self.raw.finish(wait).map(drop)
    }

    /// The calls below this one, for rows in memory of the host.
    pub fn raw(&self) -> &RawShuffle {
        &self.raw
    }
}

impl fmt::Debug for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shuffle")
            .field("raw", &self.raw)
            .field("partitions", &self.partitions)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}
