//! Copies rows into arenas, with their digests: the other half of the counting sort.
//!
//! Rows are read in their order, which is that of memory, and written one after another at the place
//! of their partition. So columns are read by long sequential reads, and each row is written at once:
//! reading the rows of one partition after those of another would fetch each line of memory of each
//! column once for every partition.

use alloc::vec;
use alloc::vec::Vec;

use treadle_shuffle::block::TableBuilder;
use treadle_shuffle::{BatchId, RowDigest, ShuffleId, Tally, Transfer};

use crate::blocks::{copy, rows_of_block};
use crate::column::Content;
use crate::cut::{Cut, NONE};
use crate::format::{Head, NOTED, NULL, PREFIX};
use crate::{Batch, Column, Field, Format, Partitions, RowsError, TARGET, Wanted};

/// The rows of a map.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// What a row is.
    pub format: &'a Format,
    /// A column for each field.
    pub columns: &'a [Column<'a>],
    /// Where each row goes.
    pub partitions: &'a Partitions,
    /// What the map has to say about its rows; empty: nothing. Only a variable format has room for it.
    pub note: &'a [u8],
}

/// What will lie where. The host gives memory of these lengths.
#[derive(Debug)]
pub struct Arenas<'a> {
    input: Input<'a>,
    groups: &'a [Wanted],
    cut: Cut,
}

/// Where the next row of a partition goes.
#[derive(Clone, Copy)]
struct Cursor {
    at: usize,
    arena: u32,
    /// Rows that the piece has yet; 0: rows are not wanted.
    left: u32,
    piece: u32,
    rows: RowDigest,
    digest: u64,
}

impl<'a> Arenas<'a> {
    /// Counts rows, and lays out an arena for each group. Rows for other partitions are left out.
    ///
    /// # Errors
    /// [`RowsError`]: the columns are not those of the format, a row is too long, or two groups have a
    /// partition in common.
    pub fn new(input: Input<'a>, groups: &'a [Wanted]) -> Result<Self, RowsError> {
        Self::with_target(input, groups, TARGET)
    }

    /// The same with batches of another size.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_target(
        input: Input<'a>,
        groups: &'a [Wanted],
        target: usize,
    ) -> Result<Self, RowsError> {
        let cut = Cut::new(&input, groups, target)?;
        Ok(Self { input, groups, cut })
    }

    /// The length of each arena in bytes.
    pub fn lengths(&self) -> &[usize] {
        &self.cut.lengths
    }

    /// Writes the batches of a transfer into the arenas, one for each group, and returns where they
    /// are. Every byte of an arena is written.
    ///
    /// # Errors
    /// [`RowsError::Memory`]: an arena has another length. [`RowsError::Block`]: the batch would have
    /// too many rows.
    pub fn fill(
        mut self,
        shuffle: ShuffleId,
        transfer: Transfer,
        arenas: &mut [&mut [u8]],
    ) -> Result<Vec<Vec<Batch>>, RowsError> {
        let expected = self.cut.lengths.iter().copied();
        let found = arenas.iter().map(|arena| arena.len());
        if !expected.clone().eq(found.clone()) {
            return Err(RowsError::Memory {
                expected: expected.sum(),
                found: found.sum(),
            });
        }
        let mut cursors = self.cursors(transfer.map);
        match self.input.format.width() {
            0 => self.variable_rows(&mut cursors, arenas),
            width => self.fixed_rows(width, &mut cursors, arenas),
        }
        // Last: the tables have the digests of the rows.
        self.tables(shuffle, transfer, arenas)
    }

    fn cursors(&self, map: u32) -> Vec<Cursor> {
        let cursor = |(partition, &piece): (u32, &u32)| {
            let first = self.cut.pieces.get(piece as usize);
            Cursor {
                at: first.map_or(0, |piece| piece.at),
                arena: first.map_or(0, |piece| piece.arena),
                left: first.map_or(0, |piece| piece.rows),
                piece,
                rows: RowDigest::new(map, partition),
                digest: 0,
            }
        };
        (0..).zip(&self.cut.first).map(cursor).collect()
    }

    fn fixed_rows(&mut self, width: usize, cursors: &mut [Cursor], arenas: &mut [&mut [u8]]) {
        let partitions = &self.input.partitions.of_rows;
        if let [Column::Fixed { bytes, stride, .. }] = *self.input.columns
            && stride == width
        {
            // The only column has the rows as they are.
            return self.place(width, bytes, partitions, cursors, arenas);
        }
        let size = rows_of_block(width);
        let mut block = vec![0; size * width];
        for (number, partitions) in partitions.chunks(size).enumerate() {
            self.fields(number * size, partitions.len(), &mut block, 0, width);
            self.place(width, &block, partitions, cursors, arenas);
        }
    }

    /// Copies rows, which are side by side, to where they go.
    fn place(
        &mut self,
        width: usize,
        rows: &[u8],
        partitions: &[u32],
        cursors: &mut [Cursor],
        arenas: &mut [&mut [u8]],
    ) {
        let words = rows.as_chunks::<8>().0.iter().map(|row| &row[..]);
        match width {
            // The compiler knows the length here: such a row is one load and one store.
            8 => self.place_each(words, partitions, cursors, arenas),
            _ => self.place_each(rows.chunks_exact(width), partitions, cursors, arenas),
        }
    }

    #[inline]
    fn place_each<'r>(
        &mut self,
        rows: impl Iterator<Item = &'r [u8]>,
        partitions: &[u32],
        cursors: &mut [Cursor],
        arenas: &mut [&mut [u8]],
    ) {
        for (row, &partition) in rows.zip(partitions) {
            let cursor = &mut cursors[partition as usize];
            if cursor.left == 0 {
                continue;
            }
            let end = cursor.at + row.len();
            arenas[cursor.arena as usize][cursor.at..end].copy_from_slice(row);
            cursor.digest = cursor.digest.wrapping_add(cursor.rows.of(row));
            cursor.at = end;
            self.cut.advance(cursor);
        }
    }

    fn variable_rows(&mut self, cursors: &mut [Cursor], arenas: &mut [&mut [u8]]) {
        let Head { lengths, head, .. } = Head::new(self.input.format);
        let size = rows_of_block(head);
        let mut block = vec![0; size * head];
        let (columns, note) = (self.input.columns, self.input.note);
        let byte_columns: Vec<&Column<'_>> = columns
            .iter()
            .filter(|column| column.is_of_bytes())
            .collect();
        let partitions = &self.input.partitions.of_rows;
        for (number, partitions) in partitions.chunks(size).enumerate() {
            let first = number * size;
            self.fields(first, partitions.len(), &mut block, PREFIX, head);
            let rows = block.chunks_exact_mut(head).zip(partitions);
            for (row, (start, &partition)) in (first..).zip(rows) {
                let cursor = &mut cursors[partition as usize];
                if cursor.left == 0 {
                    continue;
                }
                let length = self.cut.row_lengths[row] as usize;
                let end = cursor.at + length;
                let place = &mut arenas[cursor.arena as usize][cursor.at..end];
                let piece = &self.cut.pieces[cursor.piece as usize];
                let has_note = !note.is_empty() && piece.is_first && piece.rows == cursor.left;
                let mut at = head;
                for (number, column) in byte_columns.iter().enumerate() {
                    // Offsets were seen to be right when lengths were computed.
                    let value = column.value(row).unwrap_or(Content::Null);
                    let length = value.length();
                    let told = length.map_or(NULL, |length| length as u32);
                    start[lengths + 4 * number..][..4].copy_from_slice(&told.to_le_bytes());
                    let end = at + length.unwrap_or(0);
                    value.write(&mut place[at..end]);
                    at = end;
                }
                let mark = if has_note { NOTED } else { 0 };
                start[..PREFIX].copy_from_slice(&(length as u32 | mark).to_le_bytes());
                place[..head].copy_from_slice(start);
                let content = length - if has_note { note.len() + 4 } else { 0 };
                place[at..content].fill(0);
                if has_note {
                    let (text, count) = place[content..].split_at_mut(note.len());
                    text.copy_from_slice(note);
                    count.copy_from_slice(&(note.len() as u32).to_le_bytes());
                }
                cursor.digest = cursor.digest.wrapping_add(cursor.rows.of(place));
                cursor.at = end;
                self.cut.advance(cursor);
            }
        }
    }

    /// Copies the fixed fields of a block of rows to `block`, `step` bytes a row, from `at` on.
    fn fields(&self, first: usize, rows: usize, block: &mut [u8], mut at: usize, step: usize) {
        for (field, column) in self.input.format.fields().iter().zip(self.input.columns) {
            if let (
                Field::Fixed(_),
                &Column::Fixed {
                    bytes,
                    stride,
                    width,
                },
            ) = (field, column)
            {
                let from = &bytes[first * stride..];
                copy(from, stride, &mut block[at..], step, width, rows);
                at += width;
            }
        }
    }

    /// Writes headers, tables and padding.
    fn tables(
        &self,
        shuffle: ShuffleId,
        transfer: Transfer,
        arenas: &mut [&mut [u8]],
    ) -> Result<Vec<Vec<Batch>>, RowsError> {
        let width = self.input.format.width() as u32;
        let Transfer { map, attempt, .. } = transfer;
        let mut all = Vec::with_capacity(arenas.len());
        let groups = self.groups.iter().zip(&self.cut.batches);
        for ((group, outlines), arena) in groups.zip(arenas) {
            let mut batches = Vec::with_capacity(outlines.len());
            let mut end = 0;
            for (number, outline) in (0..).zip(outlines) {
                let batch = BatchId {
                    map,
                    attempt,
                    number,
                };
                let mut builder = TableBuilder::new(shuffle, group.epoch, batch, width);
                builder.reserve(outline.pieces.len());
                for piece in &self.cut.pieces[outline.pieces.clone()] {
                    builder.push(
                        piece.partition,
                        &Tally {
                            rows: piece.rows.into(),
                            bytes: piece.bytes as u64,
                            digest: piece.digest,
                        },
                    );
                }
                let (header, table) = builder.finish()?;
                arena[end..outline.offset].fill(0);
                let (head, rest) = arena[outline.offset..outline.rows_offset]
                    .split_first_chunk_mut()
                    .expect("laid out with room for a header");
                *head = header.encode();
                let (place, padding) = rest.split_at_mut(table.as_bytes().len());
                place.copy_from_slice(table.as_bytes());
                padding.fill(0);
                end = outline.offset + header.length() as usize;
                let offset = outline.offset;
                batches.push(Batch { offset, header });
            }
            all.push(batches);
        }
        Ok(all)
    }
}

impl Cut {
    /// One row of the piece is written.
    #[inline]
    fn advance(&mut self, cursor: &mut Cursor) {
        cursor.left -= 1;
        if cursor.left == 0 {
            let piece = &mut self.pieces[cursor.piece as usize];
            piece.digest = cursor.digest;
            let next = piece.next;
            if next != NONE {
                let piece = &self.pieces[next as usize];
                (cursor.at, cursor.left) = (piece.at, piece.rows);
                (cursor.piece, cursor.digest) = (next, 0);
            }
        }
    }
}
