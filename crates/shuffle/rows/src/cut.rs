//! How many rows each partition has, and where they will lie in the arenas: the counting half of a
//! counting sort.
//!
//! Each group of partitions has an arena. Its batches lie one after another, each at a multiple of
//! 64 bytes, partitions in ascending order. A partition of more than [`TARGET`] bytes is cut into
//! pieces of that size, each in a batch of its own, since a batch has at most one piece for each
//! partition.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use treadle_shuffle::Generation;
use treadle_shuffle::block::{ALIGNMENT, FIXED_ENTRY, HEADER, Header, VARIABLE_ENTRY};
use treadle_types::Runs;

use crate::column::check;
use crate::format::NOTED;
use crate::{Input, RowsError};

/// Bytes of rows in a batch, about. A batch of one row may have more.
pub const TARGET: usize = 4 << 20;
/// No piece.
pub(crate) const NONE: u32 = u32::MAX;

/// The partitions of a group, for which rows are gathered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// In which generation the group was assigned.
    pub epoch: Generation,
    pub partitions: Runs,
}

/// A batch in an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Where it begins.
    pub offset: usize,
    /// What is in it.
    pub header: Header,
}

/// Rows of one partition that will lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) partition: u32,
    pub(crate) rows: u32,
    pub(crate) bytes: usize,
    pub(crate) digest: u64,
    pub(crate) arena: u32,
    /// Where it begins in the arena.
    pub(crate) at: usize,
    /// Whether it has the first rows of its partition.
    pub(crate) is_first: bool,
    /// The piece with the rows that follow, or `NONE`.
    pub(crate) next: u32,
}

/// A batch before its rows are there.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    pub(crate) offset: usize,
    pub(crate) rows_offset: usize,
    pub(crate) pieces: Range<usize>,
}

/// Where rows will lie.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    /// All pieces, by arena and partition.
    pub(crate) pieces: Vec<Piece>,
    /// The first piece of each partition, or `NONE`.
    pub(crate) first: Vec<u32>,
    /// The batches of each arena.
    pub(crate) batches: Vec<Vec<Outline>>,
    /// The length of each arena.
    pub(crate) lengths: Vec<usize>,
    /// The length of each row, if they differ.
    pub(crate) row_lengths: Vec<u32>,
}

impl Cut {
    pub(crate) fn new(
        input: &Input<'_>,
        groups: &[Wanted],
        target: usize,
    ) -> Result<Self, RowsError> {
        check(input.columns, input.format.fields(), input.partitions.len())?;
        let row_lengths = match input.format.width() {
            0 => row_lengths(input)?,
            _ => Vec::new(),
        };
        let sizes = match input.format.width() {
            0 => variable_sizes(input, &row_lengths, target),
            width => fixed_sizes(input, width, target),
        };
        let mut cut = Self {
            pieces: Vec::with_capacity(sizes.list.len()),
            first: vec![NONE; input.partitions.count as usize],
            row_lengths,
            ..Self::default()
        };
        let entry = match input.format.width() {
            0 => VARIABLE_ENTRY,
            _ => FIXED_ENTRY,
        };
        for (arena, group) in (0..).zip(groups) {
            cut.add_pieces(arena, group, &sizes)?;
            let start = cut.batches.iter().flatten().next_back();
            let start = start.map_or(0, |batch| batch.pieces.end);
            cut.add_batches(start, entry, target);
        }
        Ok(cut)
    }

    /// Adds the pieces of a group's partitions.
    fn add_pieces(&mut self, arena: u32, group: &Wanted, sizes: &Sizes) -> Result<(), RowsError> {
        let count = self.first.len() as u64;
        for partition in group.partitions.iter().take_while(|&at| at < count) {
            let partition = partition as u32;
            let place = partition as usize;
            if self.first[place] != NONE {
                return Err(RowsError::Overlap { partition });
            }
            let start = self.pieces.len();
            for &(rows, bytes) in &sizes.list[sizes.starts[place]..sizes.starts[place + 1]] {
                let number = self.pieces.len();
                if number > start {
                    self.pieces[number - 1].next = number as u32;
                } else {
                    self.first[place] = number as u32;
                }
                self.pieces.push(Piece {
                    partition,
                    rows,
                    bytes,
                    digest: 0,
                    arena,
                    at: 0,
                    is_first: number == start,
                    next: NONE,
                });
            }
        }
        Ok(())
    }

    /// Puts the pieces from `start` on into the batches of one more arena.
    fn add_batches(&mut self, start: usize, entry: usize, target: usize) {
        let mut batches = Vec::new();
        let mut arena_end: usize = 0;
        let mut next = start;
        while next < self.pieces.len() {
            let first = next;
            let mut bytes = 0;
            while let Some(piece) = self.pieces.get(next) {
                let goes_on = next > first && !piece.is_first;
                if next > first && (goes_on || bytes + piece.bytes > target) {
                    break;
                }
                bytes += piece.bytes;
                next += 1;
            }
            let offset = arena_end.next_multiple_of(ALIGNMENT);
            let table = entry * (next - first);
            let rows_offset = (offset + HEADER + table).next_multiple_of(ALIGNMENT);
            arena_end = rows_offset;
            for piece in &mut self.pieces[first..next] {
                piece.at = arena_end;
                arena_end += piece.bytes;
            }
            batches.push(Outline {
                offset,
                rows_offset,
                pieces: first..next,
            });
        }
        self.batches.push(batches);
        self.lengths.push(arena_end);
    }
}

/// Rows and bytes of the pieces of each partition, wanted or not.
struct Sizes {
    list: Vec<(u32, usize)>,
    /// Where those of each partition begin, and the end.
    starts: Vec<usize>,
}

fn fixed_sizes(input: &Input<'_>, width: usize, target: usize) -> Sizes {
    let mut counts = vec![0_usize; input.partitions.count as usize];
    for &partition in &input.partitions.of_rows {
        counts[partition as usize] += 1;
    }
    let most = (target / width).max(1);
    let mut list = Vec::with_capacity(counts.len());
    let mut starts = Vec::with_capacity(counts.len() + 1);
    starts.push(0);
    for count in counts {
        let mut left = count;
        while left > 0 {
            let rows = left.min(most);
            list.push((rows as u32, rows * width));
            left -= rows;
        }
        starts.push(list.len());
    }
    Sizes { list, starts }
}

fn variable_sizes(input: &Input<'_>, lengths: &[u32], target: usize) -> Sizes {
    let count = input.partitions.count as usize;
    let mut open = vec![(0_u32, 0_usize); count];
    let mut closed = Vec::new();
    for (&partition, &length) in input.partitions.of_rows.iter().zip(lengths) {
        let (rows, bytes) = &mut open[partition as usize];
        let length = length as usize;
        if *rows > 0 && *bytes + length > target {
            closed.push((partition, (*rows, *bytes)));
            (*rows, *bytes) = (0, 0);
        }
        *rows += 1;
        *bytes += length;
    }
    // A stable sort: the pieces of a partition stay in the order of their rows.
    closed.sort_by_key(|&(partition, _)| partition);
    let mut closed = closed.into_iter().peekable();
    let mut list = Vec::new();
    let mut starts = vec![0];
    for (partition, last) in (0..).zip(open) {
        while let Some((_, size)) = closed.next_if(|&(of, _)| of == partition) {
            list.push(size);
        }
        if last.0 > 0 {
            list.push(last);
        }
        starts.push(list.len());
    }
    Sizes { list, starts }
}

/// The length of each variable row, with the note at the first of each partition.
fn row_lengths(input: &Input<'_>) -> Result<Vec<u32>, RowsError> {
    let rows = input.partitions.len();
    let mut lengths = vec![input.format.head(); rows];
    for (field, column) in input.columns.iter().enumerate() {
        if column.is_of_bytes() {
            for (row, length) in lengths.iter_mut().enumerate() {
                let value = column.value(row).ok_or(RowsError::Column { field, rows })?;
                *length += value.length().unwrap_or(0);
            }
        }
    }
    let mut has_rows = vec![input.note.is_empty(); input.partitions.count as usize];
    let add_rest = |(row, mut length): (usize, usize)| {
        length = length.max(input.format.least());
        let is_first = &mut has_rows[input.partitions.of_rows[row] as usize];
        if !*is_first {
            *is_first = true;
            length += input.note.len() + 4;
        }
        match u32::try_from(length) {
            Ok(length) if length < NOTED => Ok(length),
            _ => Err(RowsError::RowTooLong { row }),
        }
    };
    lengths.into_iter().enumerate().map(add_rest).collect()
}
