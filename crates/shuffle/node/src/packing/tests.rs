use treadle_shuffle::block::TableBuilder;
use treadle_shuffle::{AttemptId, BatchId, Generation, ShuffleId, Tally};

use super::*;

const WIDTH: u32 = 8;

/// Rows of 8 bytes for the partitions 0 to 3: many that are alike, few, many that are random, many alike.
fn pieces() -> Vec<Vec<u8>> {
    let alike = |first: u64| (first..first + 5000).flat_map(u64::to_le_bytes).collect();
    let mut state = 1_u64;
    let random = (0..2000).flat_map(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state ^ (state >> 29)).to_be_bytes()
    });
    vec![alike(1 << 40), vec![7; 16], random.collect(), alike(3)]
}

fn batch(number: u32) -> BatchId {
    BatchId {
        map: 1,
        attempt: AttemptId(2),
        number,
    }
}

/// An arena with these pieces in a batch each time.
fn arena(batches: &[Vec<Vec<u8>>]) -> Arena {
    let mut bytes: Vec<u8> = Vec::new();
    let mut found = Vec::new();
    for (number, pieces) in (0..).zip(batches) {
        let mut builder = TableBuilder::new(ShuffleId(1), Generation(1), batch(number), WIDTH);
        for (partition, piece) in (0..).zip(pieces) {
            let tally = Tally {
                rows: piece.len() as u64 / 8,
                bytes: piece.len() as u64,
                digest: 5,
            };
            builder.push(partition, &tally);
        }
        let (header, table) = builder.finish().unwrap();
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let offset = bytes.len();
        bytes.extend(header.encode());
        bytes.extend_from_slice(table.as_bytes());
        bytes.resize(offset + header.rows_offset() as usize, 0);
        bytes.extend(pieces.concat());
        found.push(Batch { offset, header });
    }
    let mut memory = ArenaMemory::new(bytes.len(), false).unwrap();
    memory.as_mut_slice().copy_from_slice(&bytes);
    Arena {
        memory,
        batches: found,
    }
}

fn packed(arena: Arena, codec: Codec) -> (Bytes, Vec<Batch>) {
    let allocate = |length| {
        let mut memory = ArenaMemory::new(length, false)?;
        // All of it is to be written.
        memory.as_mut_slice().fill(0xee);
        Ok(memory)
    };
    let packed = pack(arena, &mut Packer::new(codec), allocate).unwrap();
    (packed.memory.into_bytes(), packed.batches)
}

/// The pieces of a batch, as a server sends them.
fn sent(bytes: &Bytes, batch: &Batch) -> (Vec<ReadPiece>, Vec<Bytes>) {
    let bytes = bytes.slice(batch.offset..batch.offset + batch.header.length() as usize);
    let header = Header::decode(&bytes).unwrap();
    assert_eq!(header, batch.header);
    let table = bytes.slice(HEADER..HEADER + header.table_length() as usize);
    let padding = HEADER + table.len()..header.rows_offset() as usize;
    assert!(bytes[padding].iter().all(|&byte| byte == 0));
    let table = Table::new(&header, table).unwrap();
    let rows = bytes.slice(header.rows_offset() as usize..);
    let piece = |piece| {
        let read = ReadPiece::new(header.batch, &piece);
        let start = piece.offset as usize;
        (read, rows.slice(start..start + read.stored() as usize))
    };
    table.pieces().map(piece).unzip()
}

#[test]
fn pieces_are_compressed_if_that_makes_them_smaller() {
    let small = vec![vec![1; 80], vec![2; 400]];
    for codec in Codec::ALL {
        let before = arena(&[pieces(), small.clone(), pieces()]);
        let length = before.memory.len();
        let (bytes, batches) = packed(before, codec);
        assert!(bytes.len() < length * 3 / 4, "{} of {length}", bytes.len());
        let held = Arc::new(Held::default());
        for (batch, rows) in batches.iter().zip([pieces(), small.clone(), pieces()]) {
            assert_eq!(batch.offset % ALIGNMENT, 0);
            let (read, came) = sent(&bytes, batch);
            let is_packed: Vec<bool> = read.iter().map(|piece| piece.packed > 0).collect();
            match rows.len() {
                4 => assert_eq!(is_packed, [true, false, false, true]),
                _ => assert_eq!((is_packed, batch.header.packed), (vec![false; 2], 0)),
            }
            let found = unpacked(&read, came, &held).unwrap();
            assert!(found.iter().map(|(_, bytes)| bytes).eq(rows));
            assert!(found.iter().map(|(piece, _)| *piece).eq(read));
        }
        assert_eq!(held.bytes(), 0, "rows that were read are not kept");
    }
}

#[test]
fn an_arena_that_would_not_be_smaller_stays_where_it_is() {
    let mut before = arena(&[vec![pieces().remove(2)], vec![vec![1; 8], vec![2; 8]]]);
    let start = before.memory.as_mut_slice().as_ptr();
    let batches = before.batches.clone();
    let packer = &mut Packer::new(Codec::Zstd);
    let mut after = pack(before, packer, |_| panic!("nothing is allocated")).unwrap();
    assert_eq!(after.memory.as_mut_slice().as_ptr(), start);
    assert_eq!(after.batches, batches);
}

#[test]
fn what_cannot_be_unpacked_has_no_rows_and_takes_no_memory() {
    let (bytes, batches) = packed(arena(&[pieces()]), Codec::Lz4);
    let (read, came) = sent(&bytes, &batches[0]);
    let held = Arc::new(Held::default());
    let lengths = |read: &[ReadPiece], came: &[Bytes]| -> Vec<usize> {
        let found = unpacked(read, came.to_vec(), &held).unwrap();
        found.iter().map(|(_, bytes)| bytes.len()).collect()
    };
    assert_eq!(lengths(&read, &came), [40_000, 16, 16_000, 40_000]);
    // A bit of the first one has flipped.
    let mut flipped = came.clone();
    let mut first = flipped[0].to_vec();
    first[1] ^= 0x10;
    flipped[0] = first.into();
    assert_eq!(lengths(&read, &flipped), [0, 16, 16_000, 40_000]);
    // Its rows are said to have more bytes than there is memory.
    for lie in [40_008, 1 << 50, u64::MAX] {
        let mut lying = read.clone();
        lying[0].bytes = lie;
        assert_eq!(lengths(&lying, &came), [0, 16, 16_000, 40_000], "{lie}");
    }
}
