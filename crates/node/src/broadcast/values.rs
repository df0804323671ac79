//! Values in a payload, and what a worker answers.
//!
//! The first frame has the name of each value in eight bytes, the kind of its serialised form in
//! four, and the number of its frames in four; then come the frames of all. The answer has a frame
//! for each value that the worker does not keep: its position in four bytes, and why as text.

use bytes::Bytes;
use treadle_net::Frame;

use super::payload;

/// A serialised value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Packed {
    /// Its name, as [`ObjectId::to_u64`](treadle_types::ObjectId::to_u64).
    pub(crate) object: u64,
    /// Of the serialised form.
    pub(crate) kind: u32,
    pub(crate) frames: Vec<Bytes>,
}

impl Packed {
    pub(crate) fn bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.len() as u64).sum()
    }
}

/// The frames of a payload with these values.
pub(crate) fn pack(values: &[Packed]) -> Vec<Bytes> {
    let mut head = Vec::with_capacity(16 * values.len());
    for value in values {
        head.extend(value.object.to_le_bytes());
        head.extend(value.kind.to_le_bytes());
        head.extend((value.frames.len() as u32).to_le_bytes());
    }
    let frames = values.iter().flat_map(|value| value.frames.iter().cloned());
    std::iter::once(head.into()).chain(frames).collect()
}

/// The values of a payload; `None`: it has none.
pub(crate) fn unpack(payload: &Bytes) -> Option<Vec<Packed>> {
    let mut frames = payload::unpack(payload)?.into_iter();
    let head = frames.next()?;
    let (entries, []) = head.as_slice().as_chunks::<16>() else {
        return None;
    };
    let mut values = Vec::with_capacity(entries.len());
    for entry in entries {
        let word = |at: usize| entry[at..at + 4].try_into().map(u32::from_le_bytes);
        let count = word(12).ok()? as usize;
        let own: Vec<Bytes> = frames.by_ref().take(count).map(Frame::into_bytes).collect();
        if own.len() < count {
            return None;
        }
        values.push(Packed {
            object: entry[..8].try_into().map(u64::from_le_bytes).ok()?,
            kind: word(8).ok()?,
            frames: own,
        });
    }
    frames.next().is_none().then_some(values)
}

/// What a worker answers of a value that it does not keep.
pub(crate) fn failure(position: usize, reason: &str) -> Bytes {
    [&(position as u32).to_le_bytes()[..], reason.as_bytes()]
        .concat()
        .into()
}

/// Which value it was, and why.
pub(crate) fn failed(frame: &Frame) -> Option<(usize, String)> {
    let (position, reason) = frame.as_slice().split_first_chunk::<4>()?;
    let reason = String::from_utf8_lossy(reason).into_owned();
    Some((u32::from_le_bytes(*position) as usize, reason))
}

#[cfg(test)]
mod tests {
    use super::super::payload::{Kind, pack as pack_frames};
    use super::*;

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
