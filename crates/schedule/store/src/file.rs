//! The format of a spilled object.
//!
//! Integers are little endian. A checksum is CRC-32C (the polynomial of RFC 3720).
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | `TRDLOBJ\n` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | the embedder's kind |
//! | 16 | 8 | number of frames, *n* |
//! | 24 | 4 | checksum of bytes 0 to 24 and of the table |
//! | 28 | 4 | zero |
//! | 32 | 16 *n* | the table, for each frame: length (8), checksum (4), zero (4) |
//!
//! Each frame starts at the next multiple of 64 bytes; the gaps are zero. The file ends with the
//! last frame (with the table, if there is none). So every bit of a file is either checked by a
//! checksum or known.

use bytes::Bytes;

use crate::Frames;

const MAGIC: [u8; 8] = *b"TRDLOBJ\n";
const VERSION: u32 = 1;
const HEADER: usize = 32;
const ROW: usize = 16;
const ALIGN: u64 = 64;
const ZEROS: [u8; ALIGN as usize] = [0; ALIGN as usize];

/// What is wrong with the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It does not start as such a file does.
    #[error("it is not a spilled object")]
    Magic,
    /// Another version of Treadle wrote it.
    #[error("its format is version {0}, and this is version {VERSION}")]
    Version(u32),
    /// The checksum of the header and the table differs.
    #[error("the checksum of its header differs")]
    Header,
    /// What the header says needs another length.
    #[error("it has {found} bytes, but needs {expected}")]
    Length {
        /// The length that is needed; `u64::MAX` where that does not fit.
        expected: u64,
        /// The length that is there.
        found: u64,
    },
    /// The gap before the frame is not zero.
    #[error("the gap before frame {0} is not zero")]
    Gap(usize),
    /// The checksum of the frame differs.
    #[error("the checksum of frame {0} differs")]
    Frame(usize),
}

impl FormatError {
    /// The number of the frame that is concerned.
    pub fn frame(&self) -> Option<usize> {
        match self {
            FormatError::Gap(frame) | FormatError::Frame(frame) => Some(*frame),
            _ => None,
        }
    }
}

/// The bytes of a file that holds an object: a header, and views of the object's frames.
pub struct Image<'a> {
    header: Vec<u8>,
    frames: &'a Frames,
    nbytes: u64,
}

impl<'a> Image<'a> {
    /// The file of `frames`. Computes the checksums, so it reads all of the frames once.
    pub fn new(frames: &'a Frames) -> Self {
        let parts = frames.parts();
        let mut header = Vec::with_capacity(HEADER + parts.len() * ROW);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&frames.kind().to_le_bytes());
        header.extend_from_slice(&(parts.len() as u64).to_le_bytes());
        header.extend_from_slice(&[0; 8]);
        let mut nbytes = (HEADER + parts.len() * ROW) as u64;
        for part in parts {
            header.extend_from_slice(&(part.len() as u64).to_le_bytes());
            header.extend_from_slice(&crc_fast::crc32_iscsi(part).to_le_bytes());
            header.extend_from_slice(&[0; 4]);
            nbytes = nbytes.next_multiple_of(ALIGN) + part.len() as u64;
        }
        let checksum = header_checksum(&header);
        header[24..28].copy_from_slice(&checksum.to_le_bytes());
        Image {
            header,
            frames,
            nbytes,
        }
    }

    /// The length of the file.
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// The file, in pieces that follow one another.
    pub fn pieces(&self) -> Vec<&[u8]> {
        let mut pieces = Vec::with_capacity(1 + 2 * self.frames.parts().len());
        pieces.push(self.header.as_slice());
        let mut end = self.header.len() as u64;
        for part in self.frames.parts() {
            let start = end.next_multiple_of(ALIGN);
            pieces.push(&ZEROS[..(start - end) as usize]);
            pieces.push(part);
            end = start + part.len() as u64;
        }
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }
}

/// The frames of a whole file. They view `file`, and are aligned to 64 bytes if it is.
///
/// Allocates no more than in proportion to the length of `file`, whatever that contains.
///
/// # Errors
/// [`FormatError`]: any single flipped bit is found, and any change with the strength of CRC-32C.
pub fn decode(file: Bytes) -> Result<Frames, FormatError> {
    let found = file.len() as u64;
    if file.len() < HEADER {
        let expected = HEADER as u64;
        return Err(FormatError::Length { expected, found });
    }
    if file[..8] != MAGIC {
        return Err(FormatError::Magic);
    }
    let version = u32_at(&file, 8);
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    let kind = u32_at(&file, 12);
    let count = u64_at(&file, 16);
    let table = count
        .saturating_mul(ROW as u64)
        .saturating_add(HEADER as u64);
    if table > found {
        let expected = table;
        return Err(FormatError::Length { expected, found });
    }
    let (count, table) = (count as usize, table as usize);
    if header_checksum(&file[..table]) != u32_at(&file, 24) || u32_at(&file, 28) != 0 {
        return Err(FormatError::Header);
    }
    let row = |frame: usize| HEADER + frame * ROW;
    let mut expected = table as u64;
    for frame in 0..count {
        expected = expected
            .checked_next_multiple_of(ALIGN)
            .and_then(|start| start.checked_add(u64_at(&file, row(frame))))
            .unwrap_or(u64::MAX);
    }
    if expected != found {
        return Err(FormatError::Length { expected, found });
    }
    let mut parts = Vec::with_capacity(count);
    let mut end = table;
    for frame in 0..count {
        let start = end.next_multiple_of(ALIGN as usize);
        if file[end..start].iter().any(|&byte| byte != 0) {
            return Err(FormatError::Gap(frame));
        }
        end = start + u64_at(&file, row(frame)) as usize;
        let part = file.slice(start..end);
        if crc_fast::crc32_iscsi(&part) != u32_at(&file, row(frame) + 8) {
            return Err(FormatError::Frame(frame));
        }
        parts.push(part);
    }
    Ok(Frames::new(kind, parts))
}

/// Of a header and table, but for the checksum itself and the zero that follows it.
fn header_checksum(header: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&header[..24]);
    digest.update(&header[HEADER..]);
    digest.finalize() as u32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
