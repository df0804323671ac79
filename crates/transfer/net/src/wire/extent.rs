//! Extents: what stripes carry.

use treadle_transfer::layout::EXTENT;
use treadle_transfer::{Extent, TransferId};

use super::{WireError, u32_at, u64_at};
use crate::checksum::crc32c;

/// Bytes before an extent's.
pub const EXTENT_HEADER: usize = 32;

/// In the length: the bytes have no checksum.
const IS_UNCHECKED: u32 = 1 << 31;

/// The header of an extent whose bytes have this checksum, if they have one.
pub fn encode_extent(extent: &Extent, checksum: Option<u32>) -> [u8; EXTENT_HEADER] {
    let mut header = [0; EXTENT_HEADER];
    header[..8].copy_from_slice(&extent.object.0.to_le_bytes());
    header[8..16].copy_from_slice(&extent.offset.to_le_bytes());
    header[16..20].copy_from_slice(&extent.region.to_le_bytes());
    let mut length = extent.length as u32;
    if checksum.is_none() {
        length |= IS_UNCHECKED;
    }
    header[20..24].copy_from_slice(&length.to_le_bytes());
    header[24..28].copy_from_slice(&checksum.unwrap_or(0).to_le_bytes());
    let own = crc32c(&header[..28]);
    header[28..].copy_from_slice(&own.to_le_bytes());
    header
}

/// The extent that a header announces, and the checksum of its bytes, if they have one.
pub fn decode_extent(header: &[u8; EXTENT_HEADER]) -> Result<(Extent, Option<u32>), WireError> {
    let checksum = u32_at(header, 24);
    let is_unchecked = u32_at(header, 20) & IS_UNCHECKED > 0;
    if u32_at(header, 28) != crc32c(&header[..28]) || is_unchecked && checksum > 0 {
        return Err(WireError::Checksum);
    }
    let length = u64::from(u32_at(header, 20) & !IS_UNCHECKED);
    if length == 0 || length > EXTENT {
        return Err(WireError::Length {
            length,
            limit: EXTENT,
        });
    }
    let extent = Extent {
        object: TransferId(u64_at(header, 0)),
        region: u32_at(header, 16),
        offset: u64_at(header, 8),
        length,
    };
    Ok((extent, (!is_unchecked).then_some(checksum)))
}
