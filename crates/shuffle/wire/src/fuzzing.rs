//! What the fuzz target calls: any bytes as a message of the shuffle plane, or a receipt.

pub mod seeds;

use crate::{Shuffled, decode_shuffled, encode_shuffled};

/// Takes a message of the shuffle plane apart, or a receipt, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn shuffled(bytes: &[u8]) {
    fn again<M: Shuffled + PartialEq>(bytes: &[u8]) {
        if let Ok(message) = decode_shuffled::<M>(bytes) {
            assert!(decode_shuffled::<M>(&encode_shuffled(&message)) == Ok(message));
        }
    }
    again::<treadle_shuffle::ToNode>(bytes);
    again::<treadle_shuffle::ToMaster>(bytes);
    again::<treadle_shuffle::ToServer>(bytes);
    again::<treadle_shuffle::FromServer>(bytes);
    again::<treadle_shuffle::Receipt>(bytes);
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use super::seeds::seeds;

    kept!(shuffled, seeds);
}
