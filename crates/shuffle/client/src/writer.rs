//! Records of a map, kept until they are pushed.

use std::fmt;

use treadle_net::Wait;
use treadle_rows::{Column, Field, Format, Input, Integer, Partitions, Records, Wanted};
use treadle_shuffle::Transfer;
use treadle_shuffle_node::{Allocate, Arena, Failure, Packed, Source, gather};
use treadle_types::Runs;

use crate::raw::Attempt;
use crate::{At, Error, Kind, Part, Receipt, Shuffle};

/// Bytes of a partition's number, and of an offset.
const NUMBER: usize = 4;
const OFFSET: usize = 8;
/// Records have fewer bytes: with the eight before it, a row has less than 2 GiB.
const LONGEST: usize = (1 << 31) - 8;

/// Writes the rows of one run of a map.
///
/// It keeps the rows until [`Writer::finish`] sorts them by partition and pushes them. So the memory that it takes is
/// [what was written](Writer::bytes), and as much again while it pushes (more with compression). An input that is larger
/// than that is cut into several maps.
pub struct Writer<'s> {
    shuffle: &'s Shuffle,
    map: u32,
    attempt: Attempt,
    /// The partition of each row, and, for records, where each begins and the last one ends: numbers in the order of bytes
    /// of this machine.
    places: Vec<u8>,
    offsets: Vec<u8>,
    data: Vec<u8>,
}

impl<'s> Writer<'s> {
    pub(crate) fn new(shuffle: &'s Shuffle, map: u32) -> Self {
        Self {
            shuffle,
            map,
            attempt: Attempt::default(),
            places: Vec::new(),
            offsets: vec![0; OFFSET],
            data: Vec::new(),
        }
    }

    /// The map may have run before: only what no server has is pushed. That is what a map does whose rows are lost.
    #[must_use]
    pub fn again(self) -> Self {
        let attempt = self.attempt.again(true);
        Self { attempt, ..self }
    }

    /// Adds a row for a partition. Rows of a partition are read in the order in which they were added.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no such partition, or the row has another length than rows of this shuffle. Nothing is
    /// added then.
    pub fn write(&mut self, partition: u32, row: &[u8]) -> Result<(), Error> {
        self.check(partition, row.len())?;
        self.places.extend_from_slice(&partition.to_ne_bytes());
        self.data.extend_from_slice(row);
        if self.shuffle.kind() == Kind::Records {
            let end = self.data.len() as i64;
            self.offsets.extend_from_slice(&end.to_ne_bytes());
        }
        Ok(())
    }

    fn check(&self, partition: u32, length: usize) -> Result<(), Error> {
        let reason = match self.shuffle.kind() {
            _ if partition >= self.shuffle.partitions() => format!(
                "a row is for partition {partition}: there are {}, from 0 on",
                self.shuffle.partitions()
            ),
            Kind::Records if length >= LONGEST => {
                format!("a record has {length} bytes: records have less than 2 GiB")
            }
            Kind::Fixed(width) if length != width as usize => {
                format!("a row has {length} bytes: rows of this shuffle have {width}")
            }
            _ => return Ok(()),
        };
        let at = self.at();
        Err(Error::Invalid { at, reason })
    }

    fn at(&self) -> At {
        self.shuffle.raw().at(Part::Map(self.map))
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.places.len() / NUMBER
    }

    /// Bytes of memory that the rows take here.
    pub fn bytes(&self) -> usize {
        self.places.len() + self.offsets.len() + self.data.len()
    }

    /// Sorts the rows and pushes them, and waits until all copies have them in memory. Servers that are full make this wait.
    /// What is lost meanwhile is pushed again. After an error it can be called again.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::NoRoom`], [`Error::LateAttempt`]; [`Error::Refused`] after the end of the shuffle;
    /// [`Error::Gone`].
    pub fn finish(&self, wait: &mut Wait<'_>) -> Result<Receipt, Error> {
        let rows = self.sorted()?;
        let raw = self.shuffle.raw();
        match self.shuffle.codec() {
            None => raw.push(self.map, self.attempt, &rows, wait),
            Some(codec) => {
                let packed = Packed {
                    source: &rows,
                    codec,
                };
                raw.push(self.map, self.attempt, &packed, wait)
            }
        }
    }

    fn sorted(&self) -> Result<Sorted<'_>, Error> {
        let count = self.shuffle.partitions();
        let read = Partitions::read(&self.places, NUMBER, Integer::U32, self.rows(), count);
        let partitions = read.map_err(|error| Error::Invalid {
            at: self.at(),
            reason: error.to_string(),
        })?;
        let (column, format) = match self.shuffle.kind() {
            Kind::Records => {
                let column = Column::Bytes {
                    offsets: &self.offsets,
                    data: &self.data,
                    nulls: None,
                };
                (column, Records::format())
            }
            Kind::Fixed(width) => {
                let width = width as usize;
                let column = Column::Fixed {
                    bytes: &self.data,
                    stride: width,
                    width,
                };
                (column, Format::new(vec![Field::Fixed(width)]))
            }
        };
        Ok(Sorted {
            format,
            columns: [column],
            partitions,
        })
    }
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, name) = (self.rows(), self.shuffle.name());
        write!(f, "Writer({rows} rows of map {} of {name})", self.map)
    }
}

/// The rows of a writer as the plane takes them.
struct Sorted<'a> {
    format: Format,
    columns: [Column<'a>; 1],
    partitions: Partitions,
}

impl Source for Sorted<'_> {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        let input = Input {
            format: &self.format,
            columns: &self.columns,
            partitions: &self.partitions,
            note: &[],
        };
        let gathered = gather(input, transfer, groups, allocate);
        gathered.map_err(|error| Failure::Source(Box::new(error)))
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.partitions.count_in(partitions)
    }
}
