//! The rows of a partition, as a reader gets them: pieces in their order, and the memory that has them.

use bytes::Bytes;
use treadle_shuffle::ReadPiece;

/// Pieces, and their rows. Several pieces may be in one piece of memory, one after the other: to count who
/// uses each by itself takes longer than to read a small one.
#[derive(Debug, Default)]
pub struct ReadRows {
    pieces: Vec<ReadPiece>,
    /// How many of the pieces, in their order, are in each memory.
    parts: Vec<(usize, Bytes)>,
}

impl ReadRows {
    /// Pieces with memory for each of them, or for all together, which is as long as they are.
    pub(crate) fn new(pieces: Vec<ReadPiece>, mut rows: Vec<Bytes>) -> Self {
        let parts = match rows.len() == pieces.len() {
            true => rows.into_iter().map(|rows| (1, rows)).collect(),
            false => rows
                .pop()
                .map(|rows| (pieces.len(), rows))
                .into_iter()
                .collect(),
        };
        Self { pieces, parts }
    }

    /// The pieces with their memory: several together where they share it and `may_stay` says so, and each by
    /// itself elsewhere.
    pub fn parts(
        &self,
        may_stay: impl Fn(&[ReadPiece]) -> bool,
    ) -> impl Iterator<Item = (&[ReadPiece], Bytes)> {
        let mut rest = &self.pieces[..];
        self.parts.iter().flat_map(move |(count, bytes)| {
            let (pieces, after) = rest.split_at(*count);
            rest = after;
            // One that could not be unpacked has no rows.
            let (each, rows) = match *count < 2 || may_stay(pieces) {
                true => (*count, vec![bytes.clone()]),
                false => (1, cut(pieces, bytes.clone())),
            };
            pieces.chunks(each.max(1)).zip(rows)
        })
    }

    /// Each piece with its rows.
    pub fn iter(&self) -> impl Iterator<Item = (&ReadPiece, &[u8])> {
        let mut rest = &self.pieces[..];
        self.parts.iter().flat_map(move |(count, bytes)| {
            let (pieces, after) = rest.split_at(*count);
            rest = after;
            pieces.iter().scan(&bytes[..], move |rows, piece| {
                let length = match count {
                    1 => rows.len(),
                    _ => piece.stored() as usize,
                };
                let (own, after) = rows.split_at(length);
                *rows = after;
                Some((piece, own))
            })
        })
    }

    /// Bytes of all rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds those of another group, which is left without.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.pieces.append(&mut other.pieces);
        self.parts.append(&mut other.parts);
    }

    /// Puts the pieces into the order of their maps.
    pub(crate) fn sort(&mut self) {
        let parts = self.parts(|_| false);
        let all = parts.flat_map(|(pieces, rows)| pieces.first().copied().zip(Some(rows)));
        let mut all: Vec<(ReadPiece, Bytes)> = all.collect();
        all.sort_unstable_by_key(|(piece, _)| piece.batch);
        let (pieces, rows) = all.into_iter().unzip();
        *self = Self::new(pieces, rows);
    }
}

/// The rows of each piece, of memory that has all. Its length was compared with theirs.
pub(crate) fn cut(pieces: &[ReadPiece], mut rows: Bytes) -> Vec<Bytes> {
    let lengths = pieces.iter().map(|piece| piece.stored() as usize);
    lengths.map(|length| rows.split_to(length)).collect()
}

/// How many bytes the rows of these pieces take; `None`: more than there can be.
pub(crate) fn length(pieces: &[ReadPiece]) -> Option<usize> {
    pieces.iter().try_fold(0_usize, |sum, piece| {
        sum.checked_add(usize::try_from(piece.stored()).ok()?)
    })
}
