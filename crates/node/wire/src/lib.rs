//! Messages as bytes, and what the processes of a cluster say alike.
//!
//! The schemas are `proto/cluster.proto`, `data.proto`, `broadcast.proto` and `shuffle.proto`. An [`Encoder`] packs the
//! messages of one direction, in order, and a [`Decoder`] takes a packet apart. A [`Link`] does both
//! for a [`Peer`](treadle_net::Peer).
//!
//! | module | what |
//! | --- | --- |
//! | `encoder`, `decoder`, `link` | packets of messages |
//! | `direction`, `cold`, `schema` | rare messages: generated types, field by field |
//! | `rows`, `codec`, `column` | messages that tasks cause, which share columns |
//! | `keep` | what outlives a packet, and what is copied out of it |
//! | `relayed` | messages between neighbours of the broadcast plane |
//! | `shuffled` | messages of the shuffle plane, and receipts |
//! | `node_error`, `wire_error` | what goes wrong in a process, and bytes that are no messages |
//! | [`trace`] | what server and worker share when the cluster is traced |

mod codec;
mod cold;
mod column;
mod decoder;
mod direction;
mod encoder;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod keep;
mod link;
mod node_error;
mod relayed;
mod rows;
mod schema;
mod shuffled;
pub mod trace;
mod wire_error;

use std::time::Duration;

use bytes::Bytes;
use treadle_net::Options;

pub use cold::{decode_hello, decode_welcome, encode_hello, encode_hello_of, encode_welcome};
pub use column::MOST;
pub use decoder::Decoder;
pub use direction::Message;
pub use encoder::Encoder;
pub use link::{Link, Packet, introduce};
pub use node_error::{NodeError, answer_fits, call_fits};
pub use relayed::{
    FrameLengths, decode_chunk, decode_neighbour, decode_relayed, encode_neighbour, encode_relayed,
};
pub use rows::Notice;
pub use shuffled::{Shuffled, decode_shuffled, encode_shuffled};
pub use treadle_messages::{LARGEST_MESSAGE, LARGEST_VALUE, fits};
pub use wire_error::WireError;

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
    /// workers. Their kinds are those of [`Data`](treadle_messages::Data).
    data, "data"
}
generated! {
    /// `proto/broadcast.proto`.
    #[doc(hidden)]
    broadcast, "broadcast"
}
generated! {
    /// `proto/shuffle.proto`.
    #[doc(hidden)]
    shuffle, "shuffle"
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

/// The version of the protocol.
pub const PROTOCOL: u32 = 9;

/// The kind of the object with which a node introduces itself.
pub const HELLO: u32 = 16;
/// The longest of these, in bytes.
pub const LONGEST_HELLO: usize = 1 << 16;
/// The kind of the scheduler's answer.
pub const WELCOME: u32 = 17;
/// The kind of every object after that.
pub const MESSAGES: u32 = 18;

/// Packets are closed at this length, so that they stay below [`treadle_net::SMALL`] and travel on
/// the control connection.
const PACKET: usize = treadle_net::SMALL as usize - 1024;

/// How long a scheduler may say nothing that workers and clients wait for. Longer than others: without
/// it nothing goes on, so whoever stopped it (Ctrl-Z, a debugger) finds all as it was. The scheduler
/// and the workers wait as long for a client that says nothing, for the same reason: its futures are
/// in use.
pub const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(300);

/// The options of a connection to the scheduler.
pub fn to_scheduler(options: &Options, timeout: Duration) -> Options {
    let mut options = options.clone();
    options.pair.timeout = timeout;
    options
}
