//! The format of spilled files: what was written is read, and nothing else is.

use bytes::Bytes;
use proptest::prelude::*;
use treadle_store::Frames;
use treadle_store::file::{FormatError, Image, decode};

fn encode(frames: &Frames) -> Vec<u8> {
    let image = Image::new(frames);
    let file = image.pieces().concat();
    assert_eq!(file.len() as u64, image.nbytes());
    file
}

fn frames(kind: u32, lengths: &[usize]) -> Frames {
    let parts = lengths
        .iter()
        .enumerate()
        .map(|(part, &length)| {
            (0..length)
                .map(|i| (i * 7 + part) as u8)
                .collect::<Vec<_>>()
        })
        .map(Bytes::from)
        .collect();
    Frames::new(kind, parts)
}

/// With the checksum of the header made right again: what a hostile writer would do.
fn forge(file: &mut [u8], table: usize) {
    let mut header = file[..24].to_vec();
    header.extend_from_slice(&file[32..table]);
    let checksum = crc_fast::crc32_iscsi(&header);
    file[24..28].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn the_bytes_of_a_small_file() {
    let file = encode(&Frames::new(7, vec![Bytes::from_static(b"123456789")]));
    assert_eq!(file.len(), 64 + 9);
    assert_eq!(&file[..8], b"TRDLOBJ\n");
    assert_eq!(&file[8..24], b"\x01\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(&file[32..40], &9u64.to_le_bytes());
    // The check value of CRC-32C.
    assert_eq!(&file[40..44], &0xE306_9283_u32.to_le_bytes());
    assert_eq!(&file[48..64], &[0; 16]);
    assert_eq!(&file[64..], b"123456789");
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        kind in any::<u32>(),
        lengths in prop::collection::vec(0..300usize, 0..40),
    ) {
        let written = frames(kind, &lengths);
        let file = Bytes::from(encode(&written));
        let start = file.as_ptr() as usize;
        let read = decode(file).unwrap();
        prop_assert_eq!(read.kind(), kind);
        prop_assert_eq!(read.parts(), written.parts());
        for part in read.parts().iter().filter(|part| !part.is_empty()) {
            prop_assert_eq!((part.as_ptr() as usize - start) % 64, 0);
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_frames(
        mut file in prop::collection::vec(any::<u8>(), 0..400),
        count in any::<u64>(),
        small in any::<bool>(),
        table in 32..400usize,
    ) {
        if file.len() >= 32 {
            file[..8].copy_from_slice(b"TRDLOBJ\n");
            file[8..12].copy_from_slice(&1u32.to_le_bytes());
            let count = if small { count % 30 } else { count };
            file[16..24].copy_from_slice(&count.to_le_bytes());
            file[28..32].fill(0);
            let table = table.min(file.len());
            forge(&mut file, table);
        }
        let nbytes = file.len() as u64;
        if let Ok(frames) = decode(file.into()) {
            prop_assert!(frames.nbytes() <= nbytes);
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let file = encode(&frames(3, &[5, 0, 64, 130]));
    for byte in 0..file.len() {
        for bit in 0..8 {
            let mut file = file.clone();
            file[byte] ^= 1 << bit;
            assert!(decode(file.into()).is_err(), "bit {bit} of byte {byte}");
        }
    }
}

#[test]
fn every_other_length_is_found() {
    let file = encode(&frames(3, &[5, 0, 64, 130]));
    for length in 0..file.len() {
        assert!(decode(file[..length].to_vec().into()).is_err(), "{length}");
    }
    let longer = [file.as_slice(), &[0]].concat();
    assert!(matches!(
        decode(longer.into()),
        Err(FormatError::Length { .. })
    ));
}

#[test]
fn the_damaged_frame_is_named() {
    let mut file = encode(&frames(0, &[64, 64, 64]));
    let last = file.len() - 1;
    file[last] ^= 1;
    let error = decode(file.into()).unwrap_err();
    assert_eq!(error, FormatError::Frame(2));
    assert_eq!(error.frame(), Some(2));
}

#[test]
fn huge_numbers_allocate_nothing() {
    let mut file = encode(&frames(0, &[8]));
    file[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(
        decode(file.clone().into()),
        Err(FormatError::Length { .. })
    ));
    file[16..24].copy_from_slice(&1u64.to_le_bytes());
    for length in [u64::MAX, u64::MAX - 63, 1 << 62] {
        file[32..40].copy_from_slice(&length.to_le_bytes());
        forge(&mut file, 48);
        assert!(matches!(
            decode(file.clone().into()),
            Err(FormatError::Length { .. })
        ));
    }
}

#[test]
fn another_version_is_named() {
    let mut file = encode(&frames(0, &[8]));
    file[8] = 2;
    assert_eq!(decode(file.into()).unwrap_err(), FormatError::Version(2));
    assert_eq!(
        decode(vec![b'x'; 100].into()).unwrap_err(),
        FormatError::Magic
    );
}
