//! The messages between neighbours of the broadcast plane, as bytes. The schema is `proto/broadcast.proto`.
//!
//! What comes with a message (payloads, results) is in frames of its own. The generated types of these are in
//! [`proto`], for the process around the core.

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod relayed;

pub use relayed::{
    Broadcast, FrameLengths, decode_chunk, decode_neighbour, decode_relayed, encode_neighbour,
    encode_relayed,
};
pub use treadle_codec::WireError;

treadle_codec::generated! {
    /// `proto/broadcast.proto`.
    proto, "broadcast"
}

/// The kind of the first object of a neighbour. Objects of other planes come on the same connections:
/// `treadle-schedule-wire` checks that no two kinds have one number.
pub const NEIGHBOUR: u32 = 7;
/// The kind of its others.
pub const RELAYED: u32 = 8;
