//! The rows of a partition, as a reader gets them: pieces in their order, and the memory that has them.

use bytes::Bytes;
use treadle_rows::digest;
use treadle_shuffle::{ReadPiece, RowDigest};

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

    /// Bytes of all rows as they came, compressed or not.
    pub fn stored(&self) -> u64 {
        self.pieces.iter().map(ReadPiece::stored).sum()
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

/// The low half of the digest of a piece. A piece of variable rows never has the length that as many agreed
/// rows would have.
pub(crate) fn digest_of(piece: &ReadPiece, bytes: &[u8], partition: u32, width: usize) -> u32 {
    if bytes.len() as u64 != piece.bytes {
        // They could not be unpacked.
        return !piece.digest;
    }
    let rows = RowDigest::new(piece.batch.map, partition);
    if width > 0 && piece.rows.checked_mul(width as u64) == Some(piece.bytes) {
        return rows.of_rows(bytes, width) as u32;
    }
    match digest(0, rows, bytes) {
        Ok(digest) => digest as u32,
        // The bytes are not rows: no digest matches.
        Err(_) => !piece.digest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treadle_shuffle::BatchId;

    /// Pieces of these maps; each row is a byte, and says which map it is of. Map 3 has three rows.
    fn pieces(maps: &[u8]) -> (Vec<ReadPiece>, Vec<Bytes>) {
        let piece = |&map: &u8| {
            let rows = vec![map; map.into()];
            let batch = BatchId {
                map: map.into(),
                ..BatchId::default()
            };
            let bytes = rows.len() as u64;
            let piece = ReadPiece {
                batch,
                rows: bytes,
                bytes,
                digest: 0,
                packed: 0,
            };
            (piece, Bytes::from(rows))
        };
        maps.iter().map(piece).unzip()
    }

    fn found(rows: &ReadRows) -> Vec<(u32, &[u8])> {
        let found = rows.iter().map(|(piece, rows)| (piece.batch.map, rows));
        found.collect()
    }

    #[test]
    fn pieces_in_one_memory_stay_there_or_are_cut() {
        let (all, each) = pieces(&[1, 3, 2]);
        let joined = Bytes::from(each.concat());
        assert_eq!(length(&all), Some(6));
        let rows = ReadRows::new(all.clone(), vec![joined.clone()]);
        let expected: [(u32, &[u8]); 3] = [(1, &[1]), (3, &[3, 3, 3]), (2, &[2, 2])];
        assert_eq!(found(&rows), expected);
        let together: Vec<_> = rows.parts(|_| true).collect();
        assert_eq!(together, [(&all[..], joined)]);
        let cut: Vec<_> = rows.parts(|_| false).map(|(_, rows)| rows).collect();
        assert_eq!(cut, each);
        // The same with memory for each.
        let apart = ReadRows::new(all, each);
        assert_eq!(found(&apart), expected);
        assert_eq!(apart.parts(|_| true).count(), 3);
    }

    #[test]
    fn those_of_several_groups_are_in_the_order_of_their_maps() {
        let (all, each) = pieces(&[2, 5]);
        let mut rows = ReadRows::new(all, vec![each.concat().into()]);
        let (all, each) = pieces(&[1, 4]);
        rows.append(&mut ReadRows::new(all, each));
        rows.append(&mut ReadRows::new(Vec::new(), vec![Bytes::new()]));
        rows.sort();
        let maps: Vec<u32> = rows.iter().map(|(piece, _)| piece.batch.map).collect();
        assert_eq!((maps, rows.bytes()), (vec![1, 2, 4, 5], 12));
        let is_right =
            |(piece, rows): (&ReadPiece, &[u8])| rows == vec![piece.rows as u8; rows.len()];
        assert!(rows.iter().all(is_right));
    }

    #[test]
    fn lengths_that_cannot_be_are_noticed() {
        let (mut all, _) = pieces(&[1, 1]);
        all[0].bytes = u64::MAX;
        assert_eq!(length(&all), None);
    }

    #[test]
    fn a_piece_that_could_not_be_unpacked_has_no_rows() {
        let (all, _) = pieces(&[3]);
        let rows = ReadRows::new(all, vec![Bytes::new()]);
        assert_eq!(found(&rows), [(3, &[][..])]);
    }
}
