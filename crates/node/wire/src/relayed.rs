//! What neighbours of the broadcast plane tell each other. What comes with a message (payloads,
//! results) is in frames of its own, which only the room of the broadcast plane looks at.

use prost::Message as _;
use treadle_broadcast::{
    CastId, CastResult, Member, Message, Neighbour, Offer, Outcome, Output, Previous, Shape,
    Version,
};
use treadle_types::WorkerId;

use super::WireError;
use super::broadcast::{self, cast_result, neighbour::Who, relayed};
use super::keep::Detacher;
use super::schema::{Wire, field, wire_enum, wire_list, wire_required, wire_struct};

/// The lengths of the frames of results, in the order of the message.
pub type FrameLengths = Vec<Vec<u64>>;

wire_struct! {
    CastId => broadcast::Cast { session, number };
    Member => broadcast::Member { worker, host, address };
    Offer => broadcast::Offer {
        cast, members, previous, size, shape, version, fresh, unordered, mapped, aborted, settled,
    };
    Shape => broadcast::Shape { degree, local, chunk, chosen };
    Version => broadcast::Version { count, by };
    CastResult => broadcast::CastResult { number, engines, outcome };
    Output => broadcast::Output { number, engine, text };
}

wire_required! {
    CastId => broadcast::Cast, "cast";
    Shape => broadcast::Shape, "shape";
    Version => broadcast::Version, "version";
    Outcome => cast_result::Outcome, "outcome";
    Neighbour => Who, "neighbour";
}

wire_enum! {
    Neighbour => Who { values { Worker, Top } }
}

wire_enum! {
    Outcome => cast_result::Outcome {
        units { Aborted }
        values { Refused }
        structs { Finished: broadcast::Finished { size } }
        to {
            Self::Lost(_) | Self::Unreachable => unreachable!("only the top says so, to itself")
        }
    }
}

wire_enum! {
    Message => relayed::Message {
        values { Introduce, Offer }
        structs {
            Chunk: broadcast::Chunk { cast, offset, length },
            Mapping: broadcast::Mapping { cast },
            Want: broadcast::Progress { cast, offset },
            Have: broadcast::Progress { cast, offset },
            Decline: broadcast::Decline { cast, members },
            Results: broadcast::Results { session, results },
            Outputs: broadcast::Outputs { session, outputs },
            Settled: broadcast::Settled { session, settled },
            Abort: broadcast::Abort { cast, interrupt },
        }
    }
}

wire_list! {
    Member => broadcast::Introduce { members };
}

impl Wire<Vec<u64>> for Previous {
    fn to_wire(&self) -> Vec<u64> {
        let runs = self.0.iter();
        runs.flat_map(|&(count, number)| [u64::from(count), number])
            .collect()
    }

    fn of_wire(wire: Vec<u64>, _: Detacher) -> Result<Self, WireError> {
        let wrong = |value| WireError::Range { column: "", value };
        let (pairs, rest) = wire.as_chunks::<2>();
        if let [single] = rest {
            return Err(wrong(*single));
        }
        let run = |&[count, number]: &[u64; 2]| {
            let count = u32::try_from(count).map_err(|_| wrong(count))?;
            Ok((count, number))
        };
        pairs.iter().map(run).collect::<Result<_, _>>().map(Self)
    }
}

/// The frame of the first object on a connection: who speaks, and which worker is meant.
pub fn encode_neighbour(who: Neighbour, meant: WorkerId) -> Vec<u8> {
    let (who, meant) = (who.to_wire(), meant.0);
    broadcast::Neighbour { who, meant }.encode_to_vec()
}

/// The inverse of [`encode_neighbour`].
///
/// # Errors
/// For other bytes.
pub fn decode_neighbour(bytes: &[u8]) -> Result<(Neighbour, WorkerId), WireError> {
    let neighbour = broadcast::Neighbour::decode(bytes)?;
    let who = Wire::of_wire(neighbour.who, Detacher::new(bytes.len()))?;
    Ok((who, WorkerId(neighbour.meant)))
}

/// The first frame of a message. `lengths` are those of the results that are not empty.
pub fn encode_relayed(message: &Message, lengths: &[Vec<u64>]) -> Vec<u8> {
    let mut frames = Vec::new();
    for lengths in lengths {
        frames.push(lengths.len() as u64);
        frames.extend(lengths);
    }
    let message = Some(message.to_wire());
    broadcast::Relayed { message, frames }.encode_to_vec()
}

/// The inverse of [`encode_relayed`].
///
/// # Errors
/// For other bytes.
pub fn decode_relayed(bytes: &[u8]) -> Result<(Message, FrameLengths), WireError> {
    let relayed = broadcast::Relayed::decode(bytes)?;
    let message = relayed.message.ok_or(WireError::Missing("message"))?;
    let message = Message::of_wire(message, Detacher::new(bytes.len()))?;
    let results = match &message {
        Message::Results { results, .. } => results,
        _ => &[][..],
    };
    let lengths = frame_lengths(results, &relayed.frames)?;
    Ok((message, lengths))
}

/// The bytes of a payload that a message brings, if it does: cast, offset and length. Other messages
/// are not read.
pub fn decode_chunk(bytes: &[u8]) -> Option<(CastId, u64, u32)> {
    /// Of the field `chunk`, in `broadcast.proto`.
    const TAG: u8 = 3 << 3 | 2;
    if bytes.first() != Some(&TAG) {
        return None;
    }
    match decode_relayed(bytes).ok()?.0 {
        Message::Chunk {
            cast,
            offset,
            length,
        } => Some((cast, offset, length)),
        _ => None,
    }
}

/// The lengths of the frames of each result that is not empty; they make up its size.
fn frame_lengths(results: &[CastResult], numbers: &[u64]) -> Result<FrameLengths, WireError> {
    let short = || WireError::Short { column: "frames" };
    let mut rest = numbers;
    let mut all = FrameLengths::new();
    for result in results {
        let Outcome::Finished { size } = result.outcome else {
            continue;
        };
        if size == 0 {
            continue;
        }
        for _ in result.engines.iter() {
            let (&count, after) = rest.split_first().ok_or_else(short)?;
            let count = usize::try_from(count).map_err(|_| short())?;
            let (lengths, after) = after.split_at_checked(count).ok_or_else(short)?;
            let sum = lengths
                .iter()
                .try_fold(0_u64, |sum, length| sum.checked_add(*length));
            if sum != Some(size) {
                return Err(WireError::Range {
                    column: "frames",
                    value: size,
                });
            }
            all.push(lengths.to_vec());
            rest = after;
        }
    }
    match rest {
        [] => Ok(all),
        _ => Err(WireError::Surplus { column: "frames" }),
    }
}
