//! Bytes on the wire: preambles, frames, extent headers. The schema is `proto/transfer.proto`.
//!
//! Every decoder takes bytes that may come from anybody, checks a length before it allocates, and
//! never panics; the fuzz targets in `fuzz/` call them.

mod extent;
mod frame;
mod preamble;
#[cfg(test)]
mod tests;

use treadle_transfer::layout::LayoutError;

pub use self::extent::{EXTENT_HEADER, decode_extent, encode_extent};
pub use self::frame::{
    FRAME_HEADER, Frame, Header, MAX_CONTROL, MAX_OBJECT, decode_frame, encode_descriptors,
    encode_message, encode_object, encode_released, frame_length,
};
pub use self::preamble::{
    MAGIC, MAX_HELLO, PREAMBLE, VERSION, Version, decode_hello, decode_preamble, encode_preamble,
};
pub use self::proto::Segment;

/// The messages of `proto/transfer.proto`.
#[allow(unreachable_pub)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/treadle.transfer.rs"));
}

/// Bytes that are not what the protocol says.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// Not this protocol.
    #[error("the first bytes are not Treadle's; is this the right port?")]
    Magic,
    /// The other side starts a TLS handshake, or refuses what it takes for one.
    #[error(
        "the other side speaks TLS, this side does not; write treadle+tls://… on both sides, or on \
         neither"
    )]
    Tls,
    /// Another major version.
    #[error(
        "this side speaks version {VERSION} of the protocol, the other side {0}; use the same release of treadle on both"
    )]
    Version(Version),
    /// A length above its limit.
    #[error("a length of {length} bytes; at most {limit} are allowed here")]
    Length {
        /// What was announced.
        length: u64,
        limit: u64,
    },
    /// The checksum does not agree.
    #[error("the checksum of a frame does not agree: its bytes were damaged on the way")]
    Checksum,
    /// No such kind of frame.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Bytes that the schema does not allow.
    #[error("a message that cannot be decoded: {0}")]
    Message(String),
    /// Sizes that no object can have.
    #[error("{0}")]
    Layout(#[from] LayoutError),
}

fn malformed(error: impl std::fmt::Display) -> WireError {
    WireError::Message(error.to_string())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
