//! The messages of the shuffle plane, receipts, and inventories of copies in a remote store, as bytes. The schema of
//! the first two is `proto/shuffle.proto`.
//! Rows are in frames of their own.

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod inventory;
mod shuffled;

pub use inventory::{InventoryRun, decode_inventory, encode_inventory};
pub use shuffled::{Shuffle, Shuffled, decode_shuffled, encode_shuffled};
pub use treadle_codec::WireError;

treadle_codec::generated! {
    /// `proto/shuffle.proto`.
    #[doc(hidden)]
    proto, "shuffle"
}

/// The kind of an object from a writer or a reader to a server: [`ToServer`](treadle_shuffle::ToServer), then the
/// batch, if it brings one. Objects of other planes come on the same connections: `treadle-schedule-wire`
/// checks that no two kinds have one number.
pub const TO_SERVER: u32 = 9;
/// The kind of what the server says: [`FromServer`](treadle_shuffle::FromServer), then the rows, if it brings some.
pub const FROM_SERVER: u32 = 10;
