//! The format of the history file: what was taken in, in order, a block for each event.
//!
//! The file begins with [`MAGIC`]. A block is the length of its content (`u32`), a digest of it
//! (`u64`), both little-endian, and the content: the time as a varint, and the event. A file that was cut
//! off in the middle of a block ends before that block. A block that was damaged is left out; if its length
//! was, what follows is, too.

use alloc::vec::Vec;

use crate::event::Event;
use crate::reader::{Malformed, Reader, put};

/// How a file begins: a name, and the version of the format.
pub const MAGIC: &[u8; 16] = b"treadle-sight\0\0\x03";
/// Bytes before a block's content.
const HEAD: usize = 12;
/// Bytes of the longest content that is read.
pub const LONGEST: usize = 64 << 20;

/// Appends the block of an event. What was written since the last moment may be packed: [`Event::Packed`].
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

/// The blocks of a file: times and events. What is damaged, or behind the last whole block, is left out and
/// counted; an event that cannot be read, of a newer version for one, is an error, and the next one follows.
#[derive(Debug)]
pub struct Blocks<'a> {
    rest: &'a [u8],
    unread: u64,
}

impl<'a> Blocks<'a> {
    /// Of the bytes of a file; none if it does not begin with [`MAGIC`].
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes.strip_prefix(MAGIC).unwrap_or_default(),
            unread: 0,
        }
    }

    /// Of bytes that were [packed](Event::Packed).
    pub fn inside(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            unread: 0,
        }
    }

    /// Bytes that were left out so far: all of them once there are no more blocks.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// The content of the next block, whether it is whole, and what follows it.
    fn split(&self) -> Option<(&'a [u8], bool, &'a [u8])> {
        let (head, rest) = self.rest.split_at_checked(HEAD)?;
        let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
        let expected = u64::from_le_bytes(head[4..].try_into().ok()?);
        if length > LONGEST {
            return None;
        }
        let (content, rest) = rest.split_at_checked(length)?;
        Some((content, digest(content) == expected, rest))
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<(u64, Event<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some((content, is_whole, rest)) = self.split() {
            self.rest = rest;
            if !is_whole {
                self.unread += (HEAD + content.len()) as u64;
                continue;
            }
            let mut reader = Reader::new(content);
            return Some(match reader.number() {
                Ok(now) => Event::decode(reader.rest()).map(|event| (now, event)),
                Err(error) => Err(error),
            });
        }
        self.unread += self.rest.len() as u64;
        self.rest = &[];
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_that_was_cut_off_or_damaged_the_whole_blocks_are_read() {
        let mut file = MAGIC.to_vec();
        let mut ends = Vec::new();
        for now in 0..20 {
            put_block(now * 1_000, &Event::Dropped(now), &mut file);
            ends.push(file.len());
        }
        let read = |bytes: &[u8]| {
            let mut blocks = Blocks::new(bytes);
            let count = blocks.by_ref().map(Result::unwrap).count();
            (count, blocks.unread())
        };
        assert_eq!(read(&file), (20, 0));
        for end in 0..=file.len() {
            let whole = ends.iter().filter(|whole| **whole <= end).count();
            let last = ends[..whole].last().copied().unwrap_or(MAGIC.len());
            let unread = end.saturating_sub(last) as u64;
            assert_eq!(read(&file[..end]), (whole, unread), "{end}");
        }
        let mut from = MAGIC.len();
        for (place, end) in ends.iter().copied().enumerate() {
            for at in from..end {
                let mut damaged = file.clone();
                damaged[at] ^= 0x10;
                let (count, unread) = read(&damaged);
                if at < from + 4 {
                    // Its length: what follows is lost, but for chance.
                    assert!(count >= place && count < 20, "{at}");
                    assert!(unread >= (end - from) as u64, "{at}");
                } else {
                    assert_eq!((count, unread), (19, (end - from) as u64), "{at}");
                }
            }
            from = end;
        }
        assert_eq!(read(b"something else"), (0, 0));
    }
}
