//! What fuzz targets run.

use alloc::vec::Vec;

use crate::history::Blocks;
use crate::{Batch, Event, Sight};

/// A batch of a worker's: what is read is written as it was, and taken in whatever it says.
pub fn batch(bytes: &[u8]) {
    if let Ok(batch) = Batch::decode(bytes) {
        let records = batch.records().iter().copied();
        let again = Batch::encode(batch.head, &batch.beside, records);
        // One of the version before has less in it.
        if again[0] == bytes[0] {
            assert_eq!(again, bytes);
        }
    }
    let mut sight = Sight::new(1 << 20);
    let worker = treadle_types::WorkerId(1);
    let _ = sight.handle(&Event::Batch { worker, bytes }, 5);
    sight.check();
}

/// A history file: what can be read of it is taken in.
pub fn history(bytes: &[u8]) {
    let mut sight = Sight::new(1 << 20);
    let mut again = Vec::new();
    for (now, event) in Blocks::new(bytes).flatten() {
        event.encode(&mut again);
        let _ = sight.handle(&event, now);
        again.clear();
    }
    let _ = sight.overview(1 << 40, true);
    sight.check();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            super::batch(&bytes);
            super::batch(&[&[2][..], &bytes].concat());
            super::history(&bytes);
        }
    }
}
