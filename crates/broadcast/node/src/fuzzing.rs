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
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use super::Kind;
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
        let payload = |kind, frames: &[Bytes]| {
            crate::payload::pack(kind, frames)
                .expect("it is small")
                .to_vec()
        };
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

    kept!(payload, seeds);
}
