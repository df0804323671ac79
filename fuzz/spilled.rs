//! The decoder of spilled files, for its fuzz target and for the test that replays the corpus.

use treadle_store::Frames;
use treadle_store::file::{FormatError, decode};

/// Decodes the bytes: as they are, and with the checksum of the header made right.
pub fn spilled(bytes: &[u8]) {
    decoded(bytes.to_vec());
    let mut file = bytes.to_vec();
    if let Some(count) = file.get(16..24) {
        let count = u64::from_le_bytes(count.try_into().expect("eight bytes"));
        let table = count.saturating_mul(16).saturating_add(32);
        if table <= file.len() as u64 {
            let mut header = file[..24].to_vec();
            header.extend_from_slice(&file[32..table as usize]);
            let checksum = crc_fast::crc32_iscsi(&header);
            file[24..28].copy_from_slice(&checksum.to_le_bytes());
            decoded(file);
        }
    }
}

fn decoded(file: Vec<u8>) {
    let length = file.len() as u64;
    let decoded: Result<Frames, FormatError> = decode(file.into());
    match decoded {
        Ok(frames) => assert!(frames.nbytes() <= length),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
