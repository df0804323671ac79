//! What neighbours of the broadcast plane tell each other. What comes with a message (payloads,
//! results) is in frames of its own, which only the room of the broadcast plane looks at.

use prost::Message as _;
use treadle_broadcast::{
    CastId, CastResult, Member, Message, Neighbour, Offer, Outcome, Output, Previous, Settled,
    Shape, Version,
};
use treadle_codec::{
    Detacher, Schema, Wire, WireError, get_runs, wire_enum, wire_ids, wire_list, wire_required,
    wire_struct,
};
use treadle_types::{ClientId, WorkerId};

use crate::proto::{self, cast_result, neighbour::Who, relayed};

/// The schema `proto/broadcast.proto`.
#[derive(Debug)]
pub enum Broadcast {}

impl Schema for Broadcast {}

/// The lengths of the frames of results, in the order of the message.
pub type FrameLengths = Vec<Vec<u64>>;

wire_ids! { Broadcast:
    WorkerId => u32;
    ClientId => u32;
}

wire_struct! { Broadcast:
    CastId => proto::Cast { session, number };
    Member => proto::Member { worker, host, address };
    Offer => proto::Offer {
        cast, members, previous, size, shape, version, fresh, unordered, mapped, aborted, settled,
    };
    Shape => proto::Shape { degree, local, chunk, chosen };
    Version => proto::Version { count, by };
    CastResult => proto::CastResult { number, engines, outcome };
    Output => proto::Output { number, engine, text };
}

wire_required! { Broadcast:
    CastId => proto::Cast, "cast";
    Shape => proto::Shape, "shape";
    Version => proto::Version, "version";
    Outcome => cast_result::Outcome, "outcome";
    Neighbour => Who, "neighbour";
}

wire_enum! { Broadcast:
    Neighbour => Who { values { Worker, Top } }
}

wire_enum! { Broadcast:
    Outcome => cast_result::Outcome {
        units { Aborted }
        values { Refused }
        structs { Finished: proto::Finished { size } }
        to {
            Self::Lost(_) | Self::Unreachable => unreachable!("only the top says so, to itself")
        }
    }
}

wire_enum! { Broadcast:
    Message => relayed::Message {
        values { Introduce, Offer }
        structs {
            Chunk: proto::Chunk { cast, offset, length },
            Mapping: proto::Mapping { cast },
            Want: proto::Progress { cast, offset },
            Have: proto::Progress { cast, offset },
            Decline: proto::Decline { cast, members },
            Results: proto::Results { session, results },
            Outputs: proto::Outputs { session, outputs },
            Settled: proto::Settled { session, settled },
            Abort: proto::Abort { cast, interrupt },
        }
    }
}

wire_list! { Broadcast:
    Member => proto::Introduce { members };
}

/// All of them: there may be as many numbers as a session has casts.
impl Wire<Vec<u64>, Broadcast> for Settled {
    fn to_wire(&self) -> Vec<u64> {
        self.0.gaps().collect()
    }

    fn of_wire(wire: Vec<u64>, _: Detacher) -> Result<Self, WireError> {
        get_runs(&wire).map(Self)
    }
}

impl Wire<Vec<u64>, Broadcast> for Previous {
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
    let (who, meant) = (Broadcast::to_wire(&who), meant.0);
    proto::Neighbour { who, meant }.encode_to_vec()
}

/// The inverse of [`encode_neighbour`].
///
/// # Errors
/// For other bytes.
pub fn decode_neighbour(bytes: &[u8]) -> Result<(Neighbour, WorkerId), WireError> {
    let neighbour = proto::Neighbour::decode(bytes)?;
    let who = Wire::<_, Broadcast>::of_wire(neighbour.who, Detacher::new(bytes.len()))?;
    Ok((who, WorkerId(neighbour.meant)))
}

/// The first frame of a message. `lengths` are those of the results that are not empty.
pub fn encode_relayed(message: &Message, lengths: &[Vec<u64>]) -> Vec<u8> {
    let mut frames = Vec::new();
    for lengths in lengths {
        frames.push(lengths.len() as u64);
        frames.extend(lengths);
    }
    let message = Some(Broadcast::to_wire(message));
    proto::Relayed { message, frames }.encode_to_vec()
}

/// The inverse of [`encode_relayed`].
///
/// # Errors
/// For other bytes.
pub fn decode_relayed(bytes: &[u8]) -> Result<(Message, FrameLengths), WireError> {
    let relayed = proto::Relayed::decode(bytes)?;
    let message = relayed.message.ok_or(WireError::Missing("message"))?;
    let message = Wire::<_, Broadcast>::of_wire(message, Detacher::new(bytes.len()))?;
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
