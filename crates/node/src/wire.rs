//! Messages as bytes: the schemas are `proto/cluster.proto`, `data.proto` and
//! `broadcast.proto`.
//!
//! An [`Encoder`] packs the messages of one direction, in order, and a [`Decoder`] takes a packet
//! apart. A [`Link`] does both for a [`Peer`](treadle_net::Peer).

mod codec;
mod cold;
mod column;
mod decoder;
mod direction;
mod encoder;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod keep;
mod link;
mod relayed;
mod rows;
mod schema;

use bytes::Bytes;

pub use cold::{decode_hello, decode_welcome, encode_hello, encode_hello_of, encode_welcome};
pub use column::MOST;
pub use decoder::Decoder;
pub use direction::Message;
pub use encoder::Encoder;
pub use error::WireError;
pub use link::{Link, Packet, introduce};
pub use relayed::{
    FrameLengths, decode_chunk, decode_neighbour, decode_relayed, encode_neighbour, encode_relayed,
};
pub(crate) use rows::Notice;

/// Includes generated types.
macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(missing_docs, unreachable_pub, dead_code, clippy::all)]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/treadle.", $package, ".rs"));
        }
    };
}

generated! {
    /// `proto/cluster.proto`.
    #[doc(hidden)]
    proto, "cluster"
}
generated! {
    /// `proto/data.proto`: the first frames of objects between workers, and between clients and
    /// workers. Their kinds are those of [`Data`](crate::message::Data).
    data, "data"
}
generated! {
    /// `proto/broadcast.proto`.
    #[doc(hidden)]
    broadcast, "broadcast"
}

/// A message of [`data`] as a frame.
pub fn encode_data(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

/// The inverse of [`encode_data`].
///
/// # Errors
/// For other bytes.
pub fn decode_data<M: prost::Message + Default>(frame: &[u8]) -> Result<M, WireError> {
    Ok(M::decode(frame)?)
}

/// The inverse of [`Runs::gaps`](treadle_broadcast::Runs::gaps).
pub(crate) fn get_runs(numbers: Vec<u64>) -> Result<treadle_broadcast::Runs, WireError> {
    let treadle_broadcast::Settled(runs) = schema::field("runs", numbers, keep::Keeper::new(0))?;
    Ok(runs)
}

/// The version of the protocol.
pub const PROTOCOL: u32 = 2;

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
