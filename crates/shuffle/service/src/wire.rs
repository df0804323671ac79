//! What a member and the master tell each other, beside the messages of the machines.
//!
//! Each is an object of one frame. They are handled in the order in which they were sent.

use bytes::Bytes;
use prost::Message;
use treadle_net::{Incoming, NetError, Peer, SendOptions};
use treadle_shuffle::Tally;
use treadle_types::Runs;

use crate::protocol::Protocol;

/// Kinds of objects from a member.
pub(crate) const HELLO: u32 = 32;
pub(crate) const TO_MASTER: u32 = 33;
pub(crate) const CALL: u32 = 34;
pub(crate) const ROOM: u32 = 35;
/// From a server, with the reason as text: it does not serve this master.
pub(crate) const DISMISSED: u32 = 36;
/// Kinds of objects from the master.
pub(crate) const WELCOME: u32 = 48;
pub(crate) const TO_NODE: u32 = 49;
pub(crate) const MET: u32 = 50;
pub(crate) const LOST: u32 = 51;
pub(crate) const ANSWER: u32 = 52;
pub(crate) const DRAINED: u32 = 53;
/// The first one from a master that connects to a server.
pub(crate) const GOVERN: u32 = 54;
/// The list of servers.
pub(crate) const SERVERS: u32 = 55;
/// To a server, without a text: it is to leave. Servers of releases before ignore it, and learn it from the list.
pub(crate) const LEAVE: u32 = 56;
/// The longest of them that is taken, in bytes; and before it is known who says it.
pub(crate) const LONGEST: u64 = 256 << 20;
pub(crate) const LONGEST_HELLO: u64 = 64 << 10;
/// The longest name, address or domain, in bytes.
pub(crate) const LONGEST_NAME: usize = 1 << 10;
/// The longest [`Register::note`], in bytes.
pub(crate) const LONGEST_NOTE: usize = 1 << 20;
/// The most maps, and the most partitions, of a shuffle: plans and receipts with more are not taken.
pub(crate) const MOST_PARTS: u32 = treadle_codec::MOST as u32;

treadle_codec::generated! {
    /// The messages of `proto/service.proto`.
    proto, "service"
}

pub(crate) use proto::call::What;
pub(crate) use proto::{
    Answer, Call, Claim, Counted, Govern, Hello, Met, Register, Room, Server, Servers, Welcome,
};

impl Hello {
    /// Only servers have an address at which others connect.
    pub(crate) fn is_server(&self) -> bool {
        !self.address.is_empty()
    }

    pub(crate) fn protocol(&self) -> Protocol {
        Protocol {
            oldest: self.oldest,
            newest: self.newest,
        }
    }
}

impl Govern {
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol {
            oldest: self.oldest,
            newest: self.newest,
        }
    }
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

/// Reads a message.
///
/// # Errors
/// When it is none.
pub(crate) fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, prost::DecodeError> {
    M::decode(bytes)
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

/// Sends the bytes of several messages, which are written together.
pub(crate) fn send_all(peer: &Peer, kind: u32, messages: impl Iterator<Item = Vec<u8>>) {
    let corked = SendOptions {
        corked: true,
        ..SendOptions::default()
    };
    for bytes in messages {
        let _ = peer.send_with(kind, &[bytes.into()], corked);
    }
    peer.flush();
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
