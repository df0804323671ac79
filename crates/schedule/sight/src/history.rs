//! The format of the history file: what was taken in, in order, a block for each event.
//!
//! The file begins with [`MAGIC`]. A block is the length of its content (`u32`), a digest of it
//! (`u64`), both little-endian, and the content: the time as a varint, and the event. A file that was cut
//! off in the middle of a block ends before that block; so does one whose block was damaged.

use alloc::vec::Vec;

use crate::event::Event;
use crate::reader::{Malformed, Reader, put};

/// How a file begins: a name, and the version of the format.
pub const MAGIC: &[u8; 16] = b"treadle-sight\0\0\x01";
/// Bytes before a block's content.
const HEAD: usize = 12;
/// Bytes of the longest content that is read.
const LONGEST: usize = 64 << 20;

/// Appends the block of an event.
pub fn put_block(now: u64, event: &Event<'_>, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&[0; HEAD]);
    put(now, into);
    event.encode(into);
    let content = &into[start + HEAD..];
    let (length, digest) = (content.len() as u32, digest(content));
    into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    into[start + 4..start + HEAD].copy_from_slice(&digest.to_le_bytes());
}

/// Tells damaged bytes from whole ones. No protection against those who want to deceive.
fn digest(bytes: &[u8]) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes.len() as u64;
    let mut mix = |word: u64| {
        state = (state ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 32;
    };
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        mix(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
    }
    for byte in chunks.remainder() {
        mix(u64::from(*byte));
    }
    state
}

/// The blocks of a file: times and events. What is behind the last whole block is left out; an event that
/// cannot be read, of a newer version for one, is an error, and the next one follows.
#[derive(Debug)]
pub struct Blocks<'a> {
    rest: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// Of the bytes of a file; none if it does not begin with [`MAGIC`].
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes.strip_prefix(MAGIC).unwrap_or_default(),
        }
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<(u64, Event<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.rest.split_at_checked(HEAD)?;
        let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
        let expected = u64::from_le_bytes(head[4..].try_into().ok()?);
        if length > LONGEST {
            return None;
        }
        let (content, rest) = rest.split_at_checked(length)?;
        if digest(content) != expected {
            return None;
        }
        self.rest = rest;
        let mut reader = Reader::new(content);
        let now = match reader.number() {
            Ok(now) => now,
            Err(error) => return Some(Err(error)),
        };
        Some(Event::decode(reader.rest()).map(|event| (now, event)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_cut_off_or_damaged_ends_at_the_last_whole_block() {
        let mut file = MAGIC.to_vec();
        let mut ends = Vec::new();
        for now in 0..20 {
            put_block(now * 1_000, &Event::Dropped(now), &mut file);
            ends.push(file.len());
        }
        let read = |bytes: &[u8]| Blocks::new(bytes).map(Result::unwrap).count();
        for end in 0..=file.len() {
            let whole = ends.iter().filter(|whole| **whole <= end).count();
            assert_eq!(read(&file[..end]), whole, "{end}");
        }
        for at in MAGIC.len()..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            let whole = ends.iter().filter(|whole| **whole <= at).count();
            assert_eq!(read(&damaged), whole, "{at}");
        }
        assert_eq!(read(b"something else"), 0);
    }
}
