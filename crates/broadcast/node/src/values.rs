//! Values in a payload (`Values` in `proto/broadcast.proto`, then the frames of all), and what a
//! worker answers (`NotKept`).

use bytes::Bytes;
use prost::Message as _;
use treadle_broadcast_wire::proto::{NotKept, Value, Values};
use treadle_net::Frame;

/// A serialised value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packed {
    /// Its name, as [`ObjectId::to_u64`](treadle_types::ObjectId::to_u64).
    pub object: u64,
    /// Of the serialised form.
    pub kind: u32,
    pub frames: Vec<Bytes>,
}

impl Packed {
    /// Bytes of its frames.
    pub fn bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.len() as u64).sum()
    }
}

/// The frames of a payload with these values.
pub fn pack(values: &[Packed]) -> Vec<Bytes> {
    let entry = |value: &Packed| Value {
        object: value.object,
        kind: value.kind,
        frames: value.frames.len() as u32,
    };
    let head = Values {
        values: values.iter().map(entry).collect(),
    };
    let head = head.encode_to_vec();
    let frames = values.iter().flat_map(|value| value.frames.iter().cloned());
    std::iter::once(head.into()).chain(frames).collect()
}

/// The values of a payload; `None`: it has none.
pub fn unpack(payload: &Bytes) -> Option<Vec<Packed>> {
    let mut frames = crate::payload::unpack(payload)?.into_iter();
    let head = frames.next()?;
    let entries = Values::decode(head.as_slice()).ok()?.values;
    let mut values = Vec::with_capacity(entries.len());
    for entry in entries {
        let count = entry.frames as usize;
        let own: Vec<Bytes> = frames.by_ref().take(count).map(Frame::into_bytes).collect();
        if own.len() < count {
            return None;
        }
        values.push(Packed {
            object: entry.object,
            kind: entry.kind,
            frames: own,
        });
    }
    frames.next().is_none().then_some(values)
}

/// The position of a failure that is one of all values of a payload.
pub const ALL: usize = u32::MAX as usize;

/// What a worker answers of a value that it does not keep.
pub fn failure(position: usize, reason: &str) -> Bytes {
    let answer = NotKept {
        position: Some(position as u32),
        reason: reason.to_owned(),
    };
    answer.encode_to_vec().into()
}

/// Which value it was, and why.
pub fn failed(frame: &Frame) -> Option<(usize, String)> {
    let answer = NotKept::decode(frame.as_slice()).ok()?;
    Some((answer.position? as usize, answer.reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{Kind, pack as pack_frames};

    fn value(object: u64, lengths: &[usize]) -> Packed {
        Packed {
            object,
            kind: 7,
            frames: lengths.iter().map(|len| vec![1; *len].into()).collect(),
        }
    }

    #[test]
    fn values_come_out_as_they_went_in() {
        for values in [
            vec![],
            vec![value(u64::MAX, &[]), value(1, &[3, 0, 70_000])],
            vec![value(1 << 40, &[3 << 20])],
        ] {
            let payload = pack_frames(Kind::Keep, &pack(&values)).unwrap();
            assert_eq!(unpack(&payload).unwrap(), values);
        }
    }

    #[test]
    fn other_frames_are_no_values() {
        let values = pack(&[value(1, &[3, 4])]);
        for frames in [&[][..], &values[..2], &[&values[..], &values[1..]].concat()] {
            let payload = pack_frames(Kind::Keep, frames).unwrap();
            assert_eq!(unpack(&payload), None);
        }
    }

    #[test]
    fn failures_come_out_as_they_went_in() {
        let frame = Frame::from(failure(3, "no room"));
        assert_eq!(failed(&frame), Some((3, "no room".to_owned())));
        assert_eq!(failed(&Frame::from(Bytes::from_static(b"abc"))), None);
    }
}
