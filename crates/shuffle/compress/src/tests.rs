use proptest::prelude::*;

use super::*;

/// Bytes that no codec makes smaller.
fn random(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(next).collect()
}

/// Rows of a counter and a text, as tables have them.
fn table(length: usize) -> Vec<u8> {
    let row = |number: u64| [&number.to_le_bytes()[..], b"somewhere"].concat();
    let mut rows: Vec<u8> = (0..length as u64 / 17 + 1).flat_map(row).collect();
    rows.truncate(length);
    rows
}

fn packed(codec: Codec, rows: &[u8]) -> Option<Vec<u8>> {
    let mut packed = b"before".to_vec();
    let is_packed = Packer::new(codec).pack(rows, &mut packed);
    assert_eq!(&packed[..6], b"before");
    match is_packed {
        true => Some(packed.split_off(6)),
        false => {
            assert_eq!(packed.len(), 6, "nothing is left of it");
            None
        }
    }
}

fn unpacked(packed: &[u8], length: usize) -> Result<Vec<u8>, PackedError> {
    Unpacker::check(packed, length)?;
    let mut rows = vec![0xaa; length];
    Unpacker::default().unpack(packed, &mut rows)?;
    Ok(rows)
}

#[test]
fn rows_come_back_and_are_smaller() {
    for codec in Codec::ALL {
        assert_eq!(Codec::named(codec.name()), Some(codec));
        for length in [LEAST, 5000, 65_534, 65_535, BLOCK, 2 * BLOCK + 7] {
            let rows = table(length);
            let packed = packed(codec, &rows).expect("it shrinks");
            assert!(packed.len() < length * 3 / 4, "{codec:?} {length}");
            assert_eq!(unpacked(&packed, length).as_ref(), Ok(&rows));
        }
    }
    assert_eq!(Codec::named("snappy"), None);
}

#[test]
fn tables_that_were_used_before_change_nothing() {
    for codec in Codec::ALL {
        let mut packer = Packer::new(codec);
        let mut unpacker = Unpacker::default();
        for length in [100_000, 600, 1_000_000, 600, 70_000] {
            let rows = table(length);
            let mut to = Vec::new();
            assert!(packer.pack(&rows, &mut to));
            assert_eq!(Some(&to), packed(codec, &rows).as_ref());
            let mut place = vec![0; length];
            assert_eq!(unpacker.unpack(&to, &mut place), Ok(()));
            assert_eq!(place, rows);
        }
    }
}

#[test]
fn what_is_small_or_does_not_shrink_is_left_as_it_is() {
    for codec in Codec::ALL {
        assert_eq!(packed(codec, &table(LEAST - 1)), None);
        assert_eq!(packed(codec, &[]), None);
        for length in [LEAST, 100_000, 2 * BLOCK] {
            assert_eq!(packed(codec, &random(length)), None);
        }
        // What shrinks by less than a sixteenth, too.
        let mut rows = random(95_500);
        rows.resize(100_000, 0);
        assert_eq!(packed(codec, &rows), None);
        rows.resize(110_000, 0);
        assert!(packed(codec, &rows).is_some());
    }
}

#[test]
fn another_length_is_an_error_and_a_large_lie_is_one_before_memory_is_made() {
    for codec in Codec::ALL {
        let rows = table(BLOCK + 1000);
        let packed = packed(codec, &rows).expect("it shrinks");
        for length in [0, 1, 1000, BLOCK, rows.len() - 1, rows.len() + 1] {
            assert!(unpacked(&packed, length).is_err(), "{codec:?} {length}");
        }
        for length in [3 * BLOCK, 1 << 40, usize::MAX] {
            assert!(Unpacker::check(&packed, length).is_err());
        }
    }
    // As many blocks as there should be, and none can have as many rows.
    let mut lie = vec![Codec::Zstd.byte()];
    for _ in 0..1000 {
        lie.extend([5, 0, 0, 0, 1, 2, 3, 4, 5]);
    }
    let found = Unpacker::check(&lie, 1000 * BLOCK);
    assert_eq!(found, Err(PackedError::Block(BLOCK, Codec::Zstd)));
}

#[test]
fn most_is_what_a_codec_can_do() {
    for codec in Codec::ALL {
        let packed = packed(codec, &vec![7; BLOCK]).expect("it shrinks");
        assert_eq!(Unpacker::check(&packed, BLOCK), Ok(()));
        let ratio = BLOCK / packed.len();
        let most = codec.most();
        assert!((most / 3..=most).contains(&ratio), "{codec:?}: {ratio}");
    }
}

#[test]
fn a_piece_that_is_cut_off_goes_on_or_has_another_codec_is_an_error() {
    for codec in Codec::ALL {
        let rows = table(2000);
        let packed = packed(codec, &rows).expect("it shrinks");
        for length in 0..packed.len() {
            assert!(unpacked(&packed[..length], 2000).is_err());
        }
        let longer = [&packed[..], &[0]].concat();
        let found = unpacked(&longer, 2000);
        assert_eq!(found, Err(PackedError::Blocks(2000)));
        let mut other = packed;
        other[0] = 3;
        assert_eq!(unpacked(&other, 2000), Err(PackedError::Codec(Some(3))));
    }
}

proptest! {
    #[test]
    fn any_rows_come_back(
        words in prop::collection::vec(prop::sample::select(vec![0_u32, 1, 7, 1 << 20, 0xdead_beef]), 0..3000),
        tail in prop::collection::vec(any::<u8>(), 0..700),
        at in 0..2_usize,
    ) {
        let rows: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain(tail).collect();
        if let Some(packed) = packed(Codec::ALL[at], &rows) {
            prop_assert!(rows.len() >= LEAST && packed.len() <= rows.len() - rows.len() / SAVED);
            prop_assert_eq!(unpacked(&packed, rows.len()), Ok(rows));
        }
    }

    #[test]
    fn damage_is_an_error_or_other_rows_and_no_panic(
        at in 0..2_usize,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u32), 1..4),
    ) {
        let rows = table(3000);
        let mut packed = packed(Codec::ALL[at], &rows).expect("it shrinks");
        for (byte, bit) in flips {
            let byte = byte.index(packed.len());
            packed[byte] ^= 1 << bit;
        }
        if let Ok(found) = unpacked(&packed, 3000) {
            prop_assert_eq!(found.len(), 3000);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_taken_without_a_panic(
        codec in 0..4_u8,
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..3),
        length in prop::sample::select(vec![0, 1, 60, 700, 20_000, BLOCK + 1]),
    ) {
        let mut bytes = vec![codec];
        for block in &blocks {
            bytes.extend((block.len() as u32).to_le_bytes());
            bytes.extend(block);
        }
        let _ = unpacked(&bytes, length);
    }
}
