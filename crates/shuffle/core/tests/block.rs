//! The format of a batch as bytes.

use proptest::prelude::*;

use treadle_shuffle::block::{BlockError, HEADER, Header, Table, TableBuilder};
use treadle_shuffle::{AttemptId, BatchId, Generation, ReadPiece, ShuffleId, Tally};

fn batch() -> BatchId {
    BatchId {
        map: 7,
        attempt: AttemptId(1 << 40),
        number: 2,
    }
}

fn build(width: u32, pieces: &[(u32, u64, u64)]) -> Result<(Header, Table), BlockError> {
    let mut builder = TableBuilder::new(ShuffleId(9), Generation(3), batch(), width);
    for &(partition, rows, digest) in pieces {
        let bytes = rows * if width == 0 { 5 } else { u64::from(width) };
        let tally = Tally {
            rows,
            bytes,
            digest,
        };
        builder.push(partition, &tally);
    }
    builder.finish()
}

proptest! {
    #[test]
    fn pieces_are_found_as_they_were_put(
        width in prop::sample::select(vec![0_u32, 1, 8, 80]),
        pieces in prop::collection::btree_map(0..500_u32, (0..50_u64, any::<u64>()), 0..40),
    ) {
        let list: Vec<_> = pieces.iter().map(|(&p, &(rows, digest))| (p, rows, digest)).collect();
        let (header, table) = build(width, &list).unwrap();
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        prop_assert_eq!(header.entry(), [16, 12][usize::from(width > 0)]);
        let mut offset = 0;
        for partition in 0..510 {
            let rows = pieces.get(&partition).filter(|(rows, _)| *rows > 0);
            let found = table.find(partition);
            prop_assert_eq!(found.is_some(), rows.is_some());
            if let (Some(piece), Some(&(rows, digest))) = (found, rows) {
                prop_assert_eq!(piece.offset, offset);
                prop_assert_eq!(piece.tally.rows, rows);
                prop_assert_eq!(piece.tally.digest, digest & 0xffff_ffff);
                offset += piece.tally.bytes;
            }
        }
        prop_assert_eq!(offset, header.tally.bytes);
        prop_assert_eq!(header.length(), header.rows_offset() + offset);
        prop_assert_eq!(header.rows_offset() % 64, 0);
    }

    #[test]
    fn any_bytes_are_refused_or_taken_without_a_panic(
        head in prop::collection::vec(any::<u8>(), 0..100),
        table in prop::collection::vec(any::<u8>(), 0..64),
        good in any::<bool>(),
    ) {
        let mut head = head;
        if good && head.len() >= 4 {
            head[..4].copy_from_slice(b"TSB2");
        }
        if let Ok(header) = Header::decode(&head) {
            let _ = header.length();
            let _ = Table::new(&header, table.into());
        }
    }
}

#[test]
fn a_table_that_does_not_fit_is_refused_before_it_is_used() {
    let (header, table) = build(8, &[(1, 2, 5), (4, 3, 6)]).unwrap();
    let bytes = table.as_bytes().clone();
    let short = Table::new(&header, bytes.slice(..12));
    assert!(matches!(short, Err(BlockError::Length { .. })));
    let mut other = header;
    other.tally.digest += 1;
    let sum = Table::new(&other, bytes.clone());
    assert!(matches!(sum, Err(BlockError::Sum { .. })));
    let mut swapped = bytes.to_vec();
    swapped.rotate_left(12);
    let order = Table::new(&header, swapped.into());
    assert!(matches!(order, Err(BlockError::Order { .. })));
    let (variable, table) = build(0, &[(1, 2, 5), (4, 3, 6)]).unwrap();
    let mut back = table.as_bytes().to_vec();
    // Where the first piece ends, in bytes: beyond the second.
    back[12] = 26;
    let order = Table::new(&variable, back.into());
    assert!(matches!(order, Err(BlockError::Order { piece: 1, .. })));
    let mut huge = header;
    huge.tally.rows = u64::from(u32::MAX) + 1;
    huge.tally.bytes = huge.tally.rows * 8;
    assert_eq!(Header::decode(&huge.encode()), Err(BlockError::TooLarge));
    huge.pieces = u32::MAX;
    assert_eq!(Header::decode(&huge.encode()), Err(BlockError::TooLarge));
    assert_eq!(Header::decode(&[0; HEADER]), Err(BlockError::Magic));
    assert!(build(8, &[(4, 1, 1), (1, 1, 1)]).is_err());
}

/// The table of three pieces of 16, 24 and 8 bytes, of which so much is stored.
fn packed(width: u32, ends: &[u32]) -> Result<(Header, Table), BlockError> {
    let (header, table) = build(width, &[(1, 2, 5), (4, 3, 6), (9, 1, 7)])?;
    table.packed(&header, ends)
}

#[test]
fn compressed_pieces_are_found_where_they_are_and_counted_as_their_rows() {
    // Without a width they have 10, 15 and 5 bytes.
    for (width, ends) in [(8, [16, 23, 31]), (0, [10, 17, 22])] {
        let (plain, table) = build(width, &[(1, 2, 5), (4, 3, 6), (9, 1, 7)]).unwrap();
        let (header, packed) = table.packed(&plain, &ends).unwrap();
        assert_eq!((header.tally, header.packed), (plain.tally, ends[2]));
        assert_eq!(header.entry(), plain.entry() + 4);
        let rows_offset = header.rows_offset();
        assert_eq!(header.length(), rows_offset + u64::from(ends[2]));
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        assert_eq!(
            Table::new(&header, packed.as_bytes().clone()),
            Ok(packed.clone())
        );
        let found: Vec<_> = packed.pieces().collect();
        let before = table.pieces().map(|piece| piece.tally);
        assert!(found.iter().map(|piece| piece.tally).eq(before));
        let places: Vec<_> = found
            .iter()
            .map(|piece| (piece.offset, piece.packed))
            .collect();
        // Only the second one takes fewer bytes than its rows.
        let first = u64::from(ends[0]);
        assert_eq!(places, [(0, 0), (first, 7), (first + 7, 0)]);
        for piece in found {
            assert_eq!(packed.find(piece.partition), Some(piece));
            let read = ReadPiece::new(batch(), &piece);
            assert_eq!((read.tally(), read.packed), (piece.tally, piece.packed));
        }
    }
}

#[test]
fn compressed_pieces_that_are_not_smaller_or_do_not_fit_the_header_are_refused() {
    assert!(packed(8, &[16, 23, 31]).is_ok());
    for ends in [
        // More than the rows; as many altogether; one that is empty; one that ends before it begins.
        [17, 24, 32],
        [16, 40, 48],
        [0, 20, 28],
        [10, 10, 18],
        [16, 15, 20],
    ] {
        assert!(
            matches!(packed(8, &ends), Err(BlockError::Packed(_))),
            "{ends:?}"
        );
    }
    let (header, table) = packed(8, &[16, 23, 31]).unwrap();
    let other = Header {
        packed: 30,
        ..header
    };
    let found = Table::new(&other, table.as_bytes().clone());
    assert_eq!(found, Err(BlockError::Packed(30)));
    let other = Header {
        packed: 48,
        ..header
    };
    assert_eq!(Header::decode(&other.encode()), Err(BlockError::Packed(48)));
    // Without the mark the table has another length.
    let other = Header {
        packed: 0,
        ..header
    };
    let found = Table::new(&other, table.as_bytes().clone());
    assert!(matches!(found, Err(BlockError::Length { .. })));
}

#[test]
fn every_wrong_bit_of_a_header_or_a_table_is_found() {
    let pieces = [(1, 2, 5), (4, 3, 6), (9, 1, 7)];
    let plain = [8, 0].map(|width| build(width, &pieces).unwrap());
    let packed = [packed(8, &[16, 23, 31]), packed(0, &[10, 17, 22])];
    for (header, table) in plain.into_iter().chain(packed.map(Result::unwrap)) {
        let bytes = [&header.encode()[..], table.as_bytes()].concat();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (head, table) = flipped.split_at(HEADER);
            let found = Header::decode(head).and_then(|header| {
                let table = table.to_vec();
                Table::new(&header, table.into())
            });
            assert!(found.is_err(), "bit {bit}");
        }
    }
}
