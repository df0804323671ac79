//! What comes with a message, in frames of its own.

use std::collections::HashMap;

use bytes::Bytes;
use treadle_broadcast::{CastId, Message, Neighbour, Outcome};
use treadle_broadcast_wire::{
    FrameLengths, NEIGHBOUR, WireError, decode_relayed, encode_neighbour, encode_relayed,
};
use treadle_net::Frame;
use treadle_types::WorkerId;

use super::payload::INLINE;

/// Frames of results below this share one frame on the way.
const SMALL: u64 = 16 << 10;

/// The result of an engine.
pub(super) type Result_ = Vec<Bytes>;

/// What a message brought.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// A payload, or bytes of one.
    pub(super) payload: Option<Frame>,
    /// The first bytes of a payload that is mapped.
    pub(super) start: Option<Frame>,
    /// Results that are not empty, by number and engine. There is one for each engine of a cluster, perhaps.
    pub(super) results: HashMap<(u64, WorkerId), Vec<Frame>>,
}

impl Attached {
    /// Takes the result of an engine; an empty one, if none came.
    pub(super) fn take_result(&mut self, number: u64, engine: WorkerId) -> Vec<Frame> {
        self.results.remove(&(number, engine)).unwrap_or_default()
    }
}

/// Where what comes with messages is kept.
pub(super) trait Keep {
    fn payload(&self, cast: CastId) -> Option<Bytes>;
    /// Its first bytes.
    fn start(&self, cast: CastId) -> Option<Bytes>;
    fn piece(&self, cast: CastId, offset: u64, length: u32) -> Option<Bytes>;
    fn result(&self, cast: CastId, engine: WorkerId) -> Option<&Result_>;
}

/// The first object on a connection.
pub(super) fn greeting(who: Neighbour, meant: WorkerId) -> (u32, [Bytes; 1]) {
    (NEIGHBOUR, [encode_neighbour(who, meant).into()])
}

/// The frames of a message; `None`: what is to come with it is gone.
pub(super) fn frames(message: &Message, keep: &impl Keep) -> Option<Vec<Bytes>> {
    let alone = || Some(vec![encode_relayed(message, &[]).into()]);
    let with = |bytes| Some(vec![encode_relayed(message, &[]).into(), bytes]);
    match message {
        Message::Offer(offer) if offer.size <= INLINE => with(keep.payload(offer.cast)?),
        Message::Chunk {
            cast,
            offset,
            length,
        } => with(keep.piece(*cast, *offset, *length)?),
        Message::Mapping { cast } => {
            let (start, payload) = (keep.start(*cast)?, keep.payload(*cast)?);
            Some(vec![encode_relayed(message, &[]).into(), start, payload])
        }
        Message::Results { session, results } => {
            let session = *session;
            let mut lengths = FrameLengths::new();
            let mut small = Vec::new();
            let mut large = Vec::new();
            for answer in results {
                if !matches!(answer.outcome, Outcome::Finished { size } if size > 0) {
                    continue;
                }
                let number = answer.number;
                for engine in answer.engines.iter() {
                    let cast = CastId { session, number };
                    let result = keep.result(cast, WorkerId(engine as u32))?;
                    lengths.push(result.iter().map(|frame| frame.len() as u64).collect());
                    for frame in result {
                        match frame.len() as u64 {
                            length if length < SMALL => small.extend_from_slice(frame),
                            _ => large.push(frame.clone()),
                        }
                    }
                }
            }
            let mut frames = vec![encode_relayed(message, &lengths).into()];
            if !lengths.is_empty() {
                frames.push(small.into());
                frames.extend(large);
            }
            Some(frames)
        }
        _ => alone(),
    }
}

/// A message, and what came with it. `placed`: bytes of the payload are in their place already.
pub(super) fn taken(mut frames: Vec<Frame>) -> Result<(Message, Attached), WireError> {
    if frames.is_empty() {
        return Err(WireError::Missing("frame"));
    }
    let rest = frames.split_off(1);
    let head = frames.pop().expect("it is not empty");
    let (message, lengths) = decode_relayed(head.as_slice())?;
    let mut attached = Attached::default();
    let mut rest = rest.into_iter();
    let expects = |length: u64, frame: Option<Frame>| match frame {
        Some(frame) if frame.len() as u64 == length => Ok(frame),
        _ => Err(WireError::Missing("payload")),
    };
    match &message {
        Message::Offer(offer) if offer.size <= INLINE => {
            attached.payload = Some(expects(offer.size, rest.next())?);
        }
        Message::Chunk { length, .. } => {
            attached.payload = Some(expects(u64::from(*length), rest.next())?);
        }
        Message::Mapping { .. } => {
            attached.start = Some(rest.next().ok_or(WireError::Missing("start"))?);
            attached.payload = Some(rest.next().ok_or(WireError::Missing("payload"))?);
        }
        Message::Results { results, .. } if !lengths.is_empty() => {
            let small = rest.next().ok_or(WireError::Missing("results"))?;
            let mut small = small.into_bytes();
            let mut lengths = lengths.into_iter();
            for answer in results {
                if !matches!(answer.outcome, Outcome::Finished { size } if size > 0) {
                    continue;
                }
                for (engine, lengths) in answer.engines.iter().zip(lengths.by_ref()) {
                    let mut result = Vec::with_capacity(lengths.len());
                    for length in lengths {
                        if length < SMALL {
                            if length > small.len() as u64 {
                                return Err(WireError::Missing("results"));
                            }
                            result.push(Frame::from(small.split_to(length as usize)));
                        } else {
                            result.push(expects(length, rest.next())?);
                        }
                    }
                    let name = (answer.number, WorkerId(engine as u32));
                    attached.results.insert(name, result);
                }
            }
        }
        _ => {}
    }
    match rest.next() {
        None => Ok((message, attached)),
        Some(_) => Err(WireError::Surplus { column: "frames" }),
    }
}
