//! What neighbours of the broadcast plane tell each other. What comes with a message (payloads,
//! results) is in frames of its own, which only [`Attached`](crate::broadcast) looks at.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use treadle_broadcast::{
    CastId, Member, Message, Neighbour, Offer, Outcome, Output, Previous, Runs, Settled, Shape,
    Told, Version,
};
use treadle_types::{ClientId, WorkerId};

use super::WireError;
use crate::wire::proto::{self, cast_results::told, relayed::Message as Kind};

/// The most integers that the sets of a message may have together, where each of them costs
/// something.
const MOST: u64 = 1 << 20;

/// The frame of the first object on a connection: who speaks, and which worker is meant.
pub fn encode_neighbour(who: Neighbour, meant: WorkerId) -> Vec<u8> {
    use proto::neighbour::Who;
    let who = match who {
        Neighbour::Worker(worker) => Who::Worker(worker.0),
        Neighbour::Top(client) => Who::Client(client.0),
    };
    let neighbour = proto::Neighbour {
        who: Some(who),
        meant: meant.0,
    };
    neighbour.encode_to_vec()
}

/// The inverse of [`encode_neighbour`].
///
/// # Errors
/// For other bytes.
pub fn decode_neighbour(bytes: &[u8]) -> Result<(Neighbour, WorkerId), WireError> {
    use proto::neighbour::Who;
    let neighbour = proto::Neighbour::decode(bytes)?;
    let who = match neighbour.who.ok_or(WireError::Missing("neighbour"))? {
        Who::Worker(worker) => Neighbour::Worker(WorkerId(worker)),
        Who::Client(client) => Neighbour::Top(ClientId(client)),
    };
    Ok((who, WorkerId(neighbour.meant)))
}

/// The lengths of the frames of results, in the order of the message.
pub type FrameLengths = Vec<Vec<u64>>;

/// The first frame of a message. `lengths` are those of the results that are not empty.
pub fn encode_relayed(message: &Message, lengths: &[Vec<u64>]) -> Vec<u8> {
    let message = match message {
        Message::Introduce(members) => Kind::Introduce(proto::Introduce {
            engines: members.iter().map(put_member).collect(),
        }),
        Message::Offer(offer) => Kind::Offer(put_offer(offer)),
        Message::Chunk {
            cast,
            offset,
            length,
        } => Kind::Chunk(proto::CastChunk {
            cast: put_cast(*cast),
            offset: *offset,
            length: *length,
        }),
        Message::Mapping { cast } => Kind::Mapping(put_cast(*cast).expect("just made")),
        Message::Want { cast, offset } => Kind::Want(put_offset(*cast, *offset)),
        Message::Have { cast, offset } => Kind::Have(put_offset(*cast, *offset)),
        Message::Decline { cast, members } => Kind::Decline(proto::CastRuns {
            cast: put_cast(*cast),
            runs: put_runs(members),
        }),
        Message::Results { session, results } => Kind::Results(proto::CastResults {
            session: session.0,
            told: results.iter().map(put_told).collect(),
            frames: put_lengths(lengths),
        }),
        Message::Outputs { session, outputs } => Kind::Outputs(proto::CastOutputs {
            session: session.0,
            outputs: outputs.iter().map(put_output).collect(),
        }),
        Message::Settled { session, settled } => Kind::Settled(proto::CastRuns {
            cast: put_cast(CastId {
                session: *session,
                number: 0,
            }),
            runs: put_runs(&settled.0),
        }),
        Message::Abort { cast, interrupt } => Kind::Abort(proto::CastAbort {
            cast: put_cast(*cast),
            interrupt: *interrupt,
        }),
    };
    let relayed = proto::Relayed {
        message: Some(message),
    };
    relayed.encode_to_vec()
}

/// The inverse of [`encode_relayed`].
///
/// # Errors
/// For other bytes.
pub fn decode_relayed(bytes: &[u8]) -> Result<(Message, FrameLengths), WireError> {
    let relayed = proto::Relayed::decode(bytes)?;
    let mut lengths = FrameLengths::new();
    let message = match relayed.message.ok_or(WireError::Missing("message"))? {
        Kind::Introduce(introduce) => {
            Message::Introduce(introduce.engines.into_iter().map(get_member).collect())
        }
        Kind::Offer(offer) => Message::Offer(Box::new(get_offer(offer)?)),
        Kind::Chunk(chunk) => Message::Chunk {
            cast: get_cast(chunk.cast)?,
            offset: chunk.offset,
            length: chunk.length,
        },
        Kind::Mapping(cast) => Message::Mapping {
            cast: get_cast(Some(cast))?,
        },
        Kind::Want(want) => Message::Want {
            cast: get_cast(want.cast)?,
            offset: want.offset,
        },
        Kind::Have(have) => Message::Have {
            cast: get_cast(have.cast)?,
            offset: have.offset,
        },
        Kind::Decline(decline) => Message::Decline {
            cast: get_cast(decline.cast)?,
            members: get_engines(&decline.runs)?,
        },
        Kind::Results(results) => {
            let told = results.told.into_iter().map(get_told);
            let told = told.collect::<Result<Vec<_>, _>>()?;
            lengths = get_lengths(&told, &results.frames)?;
            Message::Results {
                session: ClientId(results.session),
                results: told,
            }
        }
        Kind::Outputs(outputs) => Message::Outputs {
            session: ClientId(outputs.session),
            outputs: outputs.outputs.into_iter().map(get_output).collect(),
        },
        Kind::Settled(settled) => Message::Settled {
            session: get_cast(settled.cast)?.session,
            settled: Settled(get_runs(&settled.runs)?),
        },
        Kind::Abort(abort) => Message::Abort {
            cast: get_cast(abort.cast)?,
            interrupt: abort.interrupt,
        },
    };
    Ok((message, lengths))
}

/// The bytes of a payload that a message brings, if it does: cast, offset and length. Other messages
/// are not read.
pub fn decode_chunk(bytes: &[u8]) -> Option<(CastId, u64, u32)> {
    /// Of the field `chunk`, in `cluster.proto`.
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

fn put_cast(cast: CastId) -> Option<proto::Cast> {
    Some(proto::Cast {
        session: cast.session.0,
        number: cast.number,
    })
}

fn get_cast(cast: Option<proto::Cast>) -> Result<CastId, WireError> {
    let cast = cast.ok_or(WireError::Missing("cast"))?;
    Ok(CastId {
        session: ClientId(cast.session),
        number: cast.number,
    })
}

fn put_offset(cast: CastId, offset: u64) -> proto::CastOffset {
    proto::CastOffset {
        cast: put_cast(cast),
        offset,
    }
}

pub(crate) fn put_runs(runs: &Runs) -> Vec<u64> {
    runs.gaps().collect()
}

pub(crate) fn get_runs(numbers: &[u64]) -> Result<Runs, WireError> {
    let wrong = |value| WireError::Range {
        column: "runs",
        value,
    };
    let (pairs, rest) = numbers.as_chunks::<2>();
    if let [single] = rest {
        return Err(wrong(*single));
    }
    let mut last = 0_u64;
    let mut ranges = Vec::with_capacity(pairs.len());
    for &[gap, length] in pairs {
        let start = last.checked_add(gap).ok_or(wrong(gap))?;
        let end = start.checked_add(length).ok_or(wrong(length))?;
        ranges.push((start, end));
        last = end;
    }
    Runs::from_ranges(ranges).ok_or(wrong(0))
}

/// Ids of workers.
pub(super) fn get_engines(numbers: &[u64]) -> Result<Runs, WireError> {
    let runs = get_runs(numbers)?;
    let end = runs.ranges().last().map_or(0, |&(_, end)| end);
    if end > 1 + u64::from(u32::MAX) {
        return Err(WireError::Range {
            column: "runs",
            value: end - 1,
        });
    }
    if runs.len() > MOST {
        return Err(WireError::TooMany {
            what: "engines",
            count: runs.len(),
            most: MOST,
        });
    }
    Ok(runs)
}

fn put_member(member: &Member) -> proto::introduce::Engine {
    proto::introduce::Engine {
        worker: member.worker.0,
        host: member.host,
        address: member.address.to_string(),
    }
}

fn get_member(engine: proto::introduce::Engine) -> Member {
    Member {
        worker: WorkerId(engine.worker),
        host: engine.host,
        address: Arc::from(engine.address),
    }
}

fn put_offer(offer: &Offer) -> proto::CastOffer {
    let previous = offer.previous.0.iter();
    proto::CastOffer {
        cast: put_cast(offer.cast),
        members: put_runs(&offer.members),
        previous: previous
            .flat_map(|&(count, number)| [u64::from(count), number])
            .collect(),
        size: offer.size,
        degree: offer.shape.degree,
        local: offer.shape.local,
        chunk: offer.shape.chunk,
        version: offer.version.count,
        by: offer.version.by.map(|worker| worker.0),
        fresh: offer.fresh,
        mapped: offer.mapped,
        aborted: offer.aborted,
        settled: put_runs(&offer.settled.0),
        beside: offer.beside,
    }
}

fn get_offer(offer: proto::CastOffer) -> Result<Offer, WireError> {
    let (pairs, rest) = offer.previous.as_chunks::<2>();
    let previous = pairs.iter().map(|&[count, number]| {
        let count = u32::try_from(count).map_err(|_| WireError::Range {
            column: "previous",
            value: count,
        })?;
        Ok((count, number))
    });
    let previous = previous.collect::<Result<_, WireError>>()?;
    if let [single] = rest {
        return Err(WireError::Range {
            column: "previous",
            value: *single,
        });
    }
    Ok(Offer {
        cast: get_cast(offer.cast)?,
        members: get_engines(&offer.members)?,
        previous: Previous(previous),
        size: offer.size,
        shape: Shape {
            degree: offer.degree,
            local: offer.local,
            chunk: offer.chunk,
        },
        version: Version {
            count: offer.version,
            by: offer.by.map(WorkerId),
        },
        fresh: offer.fresh,
        beside: offer.beside,
        mapped: offer.mapped,
        aborted: offer.aborted,
        settled: Settled(get_runs(&offer.settled)?),
    })
}

fn put_told(told: &Told) -> proto::cast_results::Told {
    let outcome = match &told.outcome {
        Outcome::Finished { size } => told::Outcome::Finished(*size),
        Outcome::Refused(reason) => told::Outcome::Refused(reason.to_string()),
        Outcome::Aborted => told::Outcome::Aborted(proto::Nothing {}),
        Outcome::Lost(_) | Outcome::Unreachable => unreachable!("only the top says so, to itself"),
    };
    proto::cast_results::Told {
        number: told.number,
        engines: put_runs(&told.engines),
        outcome: Some(outcome),
    }
}

fn get_told(told: proto::cast_results::Told) -> Result<Told, WireError> {
    Ok(Told {
        number: told.number,
        engines: get_engines(&told.engines)?,
        outcome: match told.outcome.ok_or(WireError::Missing("outcome"))? {
            told::Outcome::Finished(size) => Outcome::Finished { size },
            told::Outcome::Refused(reason) => Outcome::Refused(reason.into()),
            told::Outcome::Aborted(_) => Outcome::Aborted,
        },
    })
}

fn put_lengths(lengths: &[Vec<u64>]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for lengths in lengths {
        numbers.push(lengths.len() as u64);
        numbers.extend(lengths);
    }
    numbers
}

/// The lengths of the frames of each result that is not empty; they make up its size.
fn get_lengths(told: &[Told], numbers: &[u64]) -> Result<FrameLengths, WireError> {
    let short = || WireError::Short { column: "frames" };
    let mut rest = numbers;
    let mut all = FrameLengths::new();
    for told in told {
        let Outcome::Finished { size } = told.outcome else {
            continue;
        };
        if size == 0 {
            continue;
        }
        for _ in told.engines.iter() {
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

fn put_output(output: &Output) -> proto::cast_outputs::Output {
    proto::cast_outputs::Output {
        number: output.number,
        engine: output.engine.0,
        text: output.text.clone(),
    }
}

fn get_output(output: proto::cast_outputs::Output) -> Output {
    Output {
        number: output.number,
        engine: WorkerId(output.engine),
        // Not a view of the whole message, which may be large.
        text: Bytes::copy_from_slice(&output.text),
    }
}

/// Packs what a frame of a message holds, and takes it apart again.
///
/// # Panics
/// When the decoder breaks its word.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn again(bytes: &[u8]) {
    if let Ok((message, lengths)) = decode_relayed(bytes) {
        let packed = encode_relayed(&message, &lengths);
        let is_chunk = matches!(message, Message::Chunk { .. });
        assert_eq!(decode_chunk(&packed).is_some(), is_chunk);
        let unpacked = decode_relayed(&packed).expect("this side packed it");
        assert!(unpacked == (message, lengths));
    }
    if let Ok((who, meant)) = decode_neighbour(bytes) {
        let packed = encode_neighbour(who, meant);
        assert!(decode_neighbour(&packed) == Ok((who, meant)));
    }
}
