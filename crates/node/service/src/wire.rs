//! What a member and the master tell each other, beside the messages of the machines.
//!
//! Each is an object of one frame. They are handled in the order in which they were sent.

use bytes::Bytes;
use prost::Message;
use treadle_net::{Incoming, NetError, Peer};
use treadle_shuffle::Tally;
use treadle_types::Runs;

use crate::protocol::Protocol;
use crate::room::Room;

/// Kinds of objects from a member.
pub(crate) const HELLO: u32 = 32;
pub(crate) const TO_MASTER: u32 = 33;
pub(crate) const CALL: u32 = 34;
pub(crate) const ROOM: u32 = 35;
/// Kinds of objects from the master.
pub(crate) const WELCOME: u32 = 48;
pub(crate) const TO_NODE: u32 = 49;
pub(crate) const MET: u32 = 50;
pub(crate) const LOST: u32 = 51;
pub(crate) const ANSWER: u32 = 52;
pub(crate) const DRAINED: u32 = 53;
/// The longest of them that is taken, in bytes; and before it is known who says it.
pub(crate) const LONGEST: u64 = 256 << 20;
pub(crate) const LONGEST_HELLO: u64 = 64 << 10;
/// The longest name, address or domain, in bytes.
pub(crate) const LONGEST_NAME: usize = 1 << 10;
/// The longest [`Register::note`], in bytes.
pub(crate) const LONGEST_NOTE: usize = 1 << 20;
/// The most maps, and the most partitions, of a shuffle: plans and receipts with more are not taken.
pub(crate) const MOST_PARTS: u32 = treadle_node_wire::MOST as u32;

/// Who connects.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Hello {
    /// For people.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Where others reach it. Empty: it holds nothing, and only writes and reads.
    #[prost(string, tag = "2")]
    pub(crate) address: String,
    /// What fails together.
    #[prost(string, tag = "3")]
    pub(crate) domain: String,
    /// How much it is to have compared to others with as much room.
    #[prost(uint32, tag = "4")]
    pub(crate) weight: u32,
    /// Whose shuffles it registers. Members of one application keep them together.
    #[prost(uint64, tag = "5")]
    pub(crate) application: u64,
    /// The version of its code, for people.
    #[prost(string, tag = "6")]
    pub(crate) version: String,
    /// How much its shuffles count at servers that are overloaded.
    #[prost(uint32, tag = "7")]
    pub(crate) priority: u32,
    /// What a server has. It is said again while it runs.
    #[prost(message, optional, tag = "8")]
    pub(crate) room: Option<Room>,
    /// The newest and the oldest version of these messages that it speaks.
    #[prost(uint32, tag = "9")]
    pub(crate) newest: u32,
    #[prost(uint32, tag = "10")]
    pub(crate) oldest: u32,
}

impl Hello {
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol {
            oldest: self.oldest,
            newest: self.newest,
        }
    }
}

/// The master's answer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Welcome {
    #[prost(uint32, tag = "1")]
    pub(crate) id: u32,
    /// Why it is refused; empty: it is not.
    #[prost(string, tag = "2")]
    pub(crate) refused: String,
    /// The version in which both speak.
    #[prost(uint32, tag = "3")]
    pub(crate) protocol: u32,
    /// After how long a silence a process is lost.
    #[prost(uint64, tag = "4")]
    pub(crate) timeout_ms: u64,
}

/// Another server, by its number, or one that is lost.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Met {
    #[prost(uint32, tag = "1")]
    pub(crate) id: u32,
    #[prost(string, tag = "2")]
    pub(crate) address: String,
}

/// A question to the master.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Call {
    /// Chosen by the member; comes back in the answer.
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(oneof = "What", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) what: Option<What>,
}

/// What is asked.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum What {
    /// A shuffle is to be.
    #[prost(message, tag = "2")]
    Register(Register),
    /// A shuffle is over.
    #[prost(uint64, tag = "3")]
    End(u64),
    /// What is a shuffle, and which maps must run again?
    #[prost(uint64, tag = "4")]
    About(u64),
    /// A server is to leave, by its name; empty: the one that asks.
    #[prost(string, tag = "5")]
    Drain(String),
    /// What is there, as JSON?
    #[prost(bool, tag = "6")]
    State(bool),
    /// What are the records of shuffles, as JSON?
    #[prost(bool, tag = "7")]
    Records(bool),
}

/// A shuffle that is to be.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Register {
    /// For people.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) maps: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) partitions: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) copies: u32,
    /// What its writers and readers have to know, such as what a row is.
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) note: Bytes,
    /// Partitions that somebody reads: beginnings and ends of ranges. Empty: all.
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) outputs: Vec<u64>,
    /// What an earlier shuffle of the same maps had, if its outputs are used still.
    #[prost(message, optional, tag = "7")]
    pub(crate) committed: Option<Counted>,
}

/// Counts of rows.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Counted {
    #[prost(uint64, tag = "1")]
    rows: u64,
    #[prost(uint64, tag = "2")]
    bytes: u64,
    #[prost(uint64, tag = "3")]
    digest: u64,
}

impl From<Tally> for Counted {
    fn from(tally: Tally) -> Self {
        let Tally {
            rows,
            bytes,
            digest,
        } = tally;
        Self {
            rows,
            bytes,
            digest,
        }
    }
}

impl From<Counted> for Tally {
    fn from(counted: Counted) -> Self {
        let Counted {
            rows,
            bytes,
            digest,
        } = counted;
        Self {
            rows,
            bytes,
            digest,
        }
    }
}

/// The answer to a [`Call`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    /// Why it is refused; empty: it is not.
    #[prost(string, tag = "2")]
    pub(crate) refused: String,
    #[prost(uint64, tag = "3")]
    pub(crate) shuffle: u64,
    /// What it is.
    #[prost(message, optional, tag = "4")]
    pub(crate) about: Option<Register>,
    /// Maps that must run again: beginnings and ends of ranges.
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) again: Vec<u64>,
    /// All that was read must be read again: a map returned other rows, and nothing was committed since.
    #[prost(bool, tag = "6")]
    pub(crate) differs: bool,
    /// How many failure domains the servers are in.
    #[prost(uint32, tag = "7")]
    pub(crate) domains: u32,
    #[prost(string, tag = "8")]
    pub(crate) text: String,
    /// What the shuffle that has ended had, if it was committed.
    #[prost(message, optional, tag = "9")]
    pub(crate) committed: Option<Counted>,
    /// The generation in which all began anew, since a map returned other rows. What was read of an earlier
    /// one must be read again. 0: none.
    #[prost(uint32, tag = "10")]
    pub(crate) restarted: u32,
    /// The generation that was committed last. 0: none. Masters of releases before do not say it.
    #[prost(uint32, optional, tag = "11")]
    pub(crate) last_committed: Option<u32>,
}

/// Ranges as beginnings and ends.
pub(crate) fn flat(runs: &Runs) -> Vec<u64> {
    let ranges = runs.ranges().iter();
    ranges.flat_map(|&(start, end)| [start, end]).collect()
}

/// The ranges with these beginnings and ends, if they are ascending.
pub(crate) fn runs(flat: &[u64]) -> Option<Runs> {
    let (ranges, rest) = flat.as_chunks();
    let ranges = ranges.iter().map(|&[start, end]| (start, end));
    rest.is_empty().then(|| Runs::from_ranges(ranges)).flatten()
}

/// Sends a message. Who cannot be reached is noticed elsewhere.
pub(crate) fn send(peer: &Peer, kind: u32, message: &impl Message) {
    send_bytes(peer, kind, message.encode_to_vec());
}

/// Sends the bytes of a message.
pub(crate) fn send_bytes(peer: &Peer, kind: u32, bytes: Vec<u8>) {
    let _ = peer.send(kind, &[bytes.into()]);
}

/// Lets an object in, unless it is too long: then the connection ends.
///
/// # Errors
/// When the connection has ended.
pub(crate) fn accept(
    peer: &Peer,
    object: Incoming,
    longest: u64,
) -> Result<Option<Incoming>, NetError> {
    let (_, sizes) = object.header();
    if sizes.len() != 1 || sizes[0] > longest {
        object.refuse("this is not a message of the shuffle service");
        peer.start_close();
        return Ok(None);
    }
    object.accept(Vec::new())?;
    Ok(Some(object))
}

/// The kind of an object that has arrived, and its bytes.
///
/// # Errors
/// When it did not arrive.
pub(crate) fn take(object: Incoming) -> Result<(u32, Bytes), NetError> {
    let received = object.take()?;
    let frame = received.frames.into_iter().next();
    let bytes = frame.map(treadle_net::Frame::into_bytes);
    Ok((received.kind, bytes.unwrap_or_default()))
}
