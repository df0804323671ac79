//! What the fuzz targets call: any bytes as a message of the shuffle plane, a receipt, or an inventory.

pub mod seeds;

use crate::{Shuffled, decode_inventory, decode_shuffled, encode_inventory, encode_shuffled};

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

/// Takes an inventory apart, and packs what it held again.
///
/// # Panics
/// When the decoder breaks its word.
pub fn inventory(bytes: &[u8]) {
    if let Some((inventory, runs)) = decode_inventory(bytes) {
        let again = encode_inventory(&inventory, &runs);
        assert!(decode_inventory(&again) == Some((inventory, runs)));
    }
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use super::seeds::{inventories, seeds};

    kept!(shuffled, seeds);
    kept!(inventory, inventories);
}
