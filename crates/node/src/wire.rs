//! Messages as bytes: the schema is `proto/cluster.proto`.
//!
//! An [`Encoder`] packs the messages of one direction, in order, and a [`Decoder`] takes a packet
//! apart. A [`Link`] does both for a [`Peer`](treadle_net::Peer).

mod batch;
mod cold;
mod column;
mod commands;
mod decoder;
mod direction;
mod encoder;
mod error;
mod family;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
mod keep;
mod link;
mod notices;
mod relayed;
mod releases;
mod reports;

pub use batch::MOST;
pub use decoder::Decoder;
pub use direction::Message;
pub use encoder::Encoder;
pub use error::WireError;
pub use hello::{
    decode_data, decode_hello, decode_welcome, encode_data, encode_hello, encode_hello_of,
    encode_welcome,
};
pub use link::{Link, Packet, introduce};
pub(crate) use notices::Finished;
pub use relayed::{
    FrameLengths, decode_chunk, decode_neighbour, decode_relayed, encode_neighbour, encode_relayed,
};
pub(crate) use relayed::{get_runs, put_runs};

/// The generated types.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all)]
pub(crate) mod proto {
    include!(concat!(env!("OUT_DIR"), "/treadle.cluster.rs"));
}

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;

/// The kind of the object with which a node introduces itself.
pub const HELLO: u32 = 16;
/// The longest of these, in bytes.
pub(crate) const LONGEST_HELLO: usize = 1 << 16;
/// The kind of the scheduler's answer.
pub const WELCOME: u32 = 17;
/// The kind of every object after that.
pub const MESSAGES: u32 = 18;

/// The longest message between nodes, in bytes. Whoever sends one makes sure that it is no longer: the
/// receiver could only end the connection.
pub const LARGEST_MESSAGE: u64 = 256 << 20;
/// The longest argument or answer of a call. The rest of its message, with what the scheduler says of
/// who asked, takes less than the difference.
pub const LARGEST_VALUE: usize = (LARGEST_MESSAGE as usize) - (1 << 20);

/// Packets are closed at this length, so that they stay below [`treadle_net::SMALL`] and travel on
/// the control connection.
const PACKET: usize = treadle_net::SMALL as usize - 1024;
