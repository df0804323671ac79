//! What the fuzz target calls: any bytes as a payload.

use bytes::Bytes;
use treadle_net::Frame;

use crate::payload::{self, Kind};
use crate::values::{failed, failure, pack, unpack};

/// Takes the payload of a cast apart, values in it and what a worker answers about them, and packs
/// what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn payload(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let packed = |frames: &[Bytes]| payload::pack(Kind::Keep, frames).expect("it is small");
    if let Some(frames) = payload::unpack(&bytes) {
        let frames: Vec<Bytes> = frames.into_iter().map(Frame::into_bytes).collect();
        let again = payload::unpack(&packed(&frames)).expect("this side packed it");
        assert!(
            again
                .iter()
                .map(Frame::as_slice)
                .eq(frames.iter().map(|frame| &frame[..]))
        );
    }
    if let Some(values) = unpack(&bytes) {
        assert_eq!(unpack(&packed(&pack(&values))), Some(values));
    }
    if let Some((position, reason)) = failed(&Frame::from(bytes)) {
        let again = Frame::from(failure(position, &reason));
        assert_eq!(failed(&again), Some((position, reason)));
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

#[cfg(test)]
#[path = "../../../../fuzz/damaged.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod damaged;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::damaged::damaged;
    use super::{Kind, corpus, payload as target};
    use crate::payload;
    use crate::values::{Packed, failure, pack};
    use bytes::Bytes;

    /// Valid payloads and answers.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let value = |object, frames: &[&'static str]| Packed {
            object,
            kind: 7,
            frames: frames.iter().copied().map(Bytes::from).collect(),
        };
        let values = pack(&[value(1 << 32, &["head", ""]), value(u64::MAX, &[])]);
        let payload =
            |kind, frames: &[Bytes]| payload::pack(kind, frames).expect("it is small").to_vec();
        vec![
            ("values", payload(Kind::Keep, &values)),
            (
                "run",
                payload(Kind::Run, &[Bytes::from("head"), Bytes::from("buffer")]),
            ),
            ("empty", payload(Kind::Call, &[])),
            ("not-kept", failure(3, "no room").to_vec()),
        ]
    }

    #[test]
    fn the_corpus_has_what_is_valid() {
        for (name, bytes) in seeds() {
            corpus::compare("payload", name, &bytes);
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        corpus::replay("payload", target);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            target(&bytes);
        }

        #[test]
        fn damaged_seeds(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            length in any::<prop::sample::Index>(),
        ) {
            damaged(seeds(), &changes, length, target);
        }
    }
}
