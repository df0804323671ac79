//! Compression of pieces of rows. A *packed* piece can be unpacked by itself:
//!
//! ```text
//! codec    1 byte: 1 lz4, 2 zstd
//! blocks   of 4 MiB of rows each, and of what is left the last one:
//!            length 4 · what the codec has made of the rows
//! ```
//!
//! How many bytes the rows have is said elsewhere. Numbers are little-endian. The crate is pure: no IO,
//! clock, threads or randomness.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use zstd_safe::{CCtx, DCtx};

/// Pieces of fewer bytes are left as they are: little can be saved, and each costs a call of the codec.
pub const LEAST: usize = 512;
/// A piece is packed if it saves at least this part of its bytes: one that is not is read without work.
const SAVED: usize = 16;
/// Bytes of rows in a block. Memory of the codecs is bounded by it.
const BLOCK: usize = 4 << 20;
/// The level of zstd. A map waits for its thread: higher ones take several times as long for a few percent.
const LEVEL: i32 = 1;

/// How pieces are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// Fast.
    Lz4,
    /// Smaller, and slower.
    Zstd,
}

impl Codec {
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The codec of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }

    fn byte(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The most bytes that one byte can stand for: a match of lz4 grows by 255 with each, a block of zstd
    /// has 128 KiB at most, and takes four.
    fn most(self) -> usize {
        match self {
            Self::Lz4 => 255,
            Self::Zstd => 32 << 10,
        }
    }
}

/// Why bytes are no packed piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PackedError {
    /// It begins with another byte.
    #[error("the piece is compressed by a codec that is not known here: {0:?}")]
    Codec(Option<u8>),
    /// Its blocks are not those of as many rows.
    #[error("the piece does not have {0} bytes of rows in blocks")]
    Blocks(usize),
    /// A block is damaged, or has more or fewer rows.
    #[error("a block of the piece is not {0} bytes of rows, compressed by {1:?}")]
    Block(usize, Codec),
    /// There is no memory for the codec.
    #[error("there is no memory to uncompress rows")]
    Memory,
}

/// Packs pieces. It keeps the codec's tables: to make them takes longer than to compress a small piece.
pub struct Packer {
    codec: Codec,
    /// For rows of less than 64 KiB, whose table is cleared in less time, and for others.
    tables: [CompressTable; 2],
    zstd: Option<CCtx<'static>>,
    block: Vec<u8>,
}

impl Packer {
    /// For this codec.
    pub fn new(codec: Codec) -> Self {
        let zstd = match codec {
            Codec::Lz4 => None,
            Codec::Zstd => CCtx::try_create(),
        };
        Self {
            codec,
            tables: [CompressTable::small(), CompressTable::large()],
            zstd,
            block: Vec::new(),
        }
    }

    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Appends a piece to `to`. `false`: it is too small, or would not be much smaller; nothing is appended.
    pub fn pack(&mut self, rows: &[u8], to: &mut Vec<u8>) -> bool {
        if rows.len() < LEAST {
            return false;
        }
        let start = to.len();
        to.push(self.codec.byte());
        for block in rows.chunks(BLOCK) {
            let Some(packed) = self.block(block) else {
                to.truncate(start);
                return false;
            };
            to.extend((packed.len() as u32).to_le_bytes());
            to.extend_from_slice(packed);
        }
        let is_worth_it = to.len() - start <= rows.len() - rows.len() / SAVED;
        if !is_worth_it {
            to.truncate(start);
        }
        is_worth_it
    }

    fn block(&mut self, rows: &[u8]) -> Option<&[u8]> {
        let most = match self.codec {
            Codec::Lz4 => get_maximum_output_size(rows.len()),
            Codec::Zstd => zstd_safe::compress_bound(rows.len()),
        };
        if self.block.len() < most {
            self.block.resize(most, 0);
        }
        let place = &mut self.block[..];
        let length = match self.codec {
            Codec::Lz4 => {
                let table = &mut self.tables[usize::from(rows.len() >= usize::from(u16::MAX))];
                compress_into_with_table(rows, place, table).ok()
            }
            Codec::Zstd => self.zstd.as_mut()?.compress(place, rows, LEVEL).ok(),
        };
        self.block.get(..length?)
    }
}

/// Unpacks pieces, whatever their codecs.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<DCtx<'static>>,
}

impl Unpacker {
    /// Whether a piece may have so many bytes of rows. Memory is made for them after that: what lies about
    /// its length gets no more of it than the same bytes could really fill.
    ///
    /// # Errors
    /// [`PackedError`].
    pub fn check(packed: &[u8], length: usize) -> Result<(), PackedError> {
        walk(packed, length, |codec, block, length| {
            match block.len().saturating_mul(codec.most()) >= length {
                true => Ok(()),
                false => Err(PackedError::Block(length, codec)),
            }
        })
    }

    /// Writes the rows of a piece, which fill `place`.
    ///
    /// # Errors
    /// [`PackedError`]. What is in `place` is arbitrary then.
    pub fn unpack(&mut self, packed: &[u8], place: &mut [u8]) -> Result<(), PackedError> {
        let mut rest = &mut place[..];
        walk(packed, rest.len(), |codec, block, length| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            let found = match codec {
                Codec::Lz4 => decompress_into(block, place).ok(),
                Codec::Zstd => {
                    if self.zstd.is_none() {
                        self.zstd = DCtx::try_create();
                    }
                    let zstd = self.zstd.as_mut().ok_or(PackedError::Memory)?;
                    zstd.decompress(place, block).ok()
                }
            };
            match found == Some(length) {
                true => Ok(()),
                false => Err(PackedError::Block(length, codec)),
            }
        })
    }
}

/// Calls `each` with the codec, the bytes and the length of the rows of each block.
fn walk(
    packed: &[u8],
    length: usize,
    mut each: impl FnMut(Codec, &[u8], usize) -> Result<(), PackedError>,
) -> Result<(), PackedError> {
    let codec = packed.first().copied();
    let found = Codec::ALL.into_iter().find(|one| Some(one.byte()) == codec);
    let (Some(codec), Some(mut rest)) = (found, packed.get(1..)) else {
        return Err(PackedError::Codec(codec));
    };
    let mut left = length;
    while left > 0 {
        let rows = left.min(BLOCK);
        let (block, after) = first_block(rest).ok_or(PackedError::Blocks(length))?;
        each(codec, block, rows)?;
        left -= rows;
        rest = after;
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(PackedError::Blocks(length)),
    }
}

fn first_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests;
