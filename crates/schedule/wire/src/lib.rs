//! The messages of scheduler, workers and clients as bytes, and what their processes say alike.
//!
//! The schemas are `proto/cluster.proto` and `data.proto`. An [`Encoder`] packs the messages of one direction, in
//! order, and a [`Decoder`] takes a packet apart. A [`Link`] does both for a [`Peer`](treadle_net::Peer). What the
//! planes of broadcast and shuffle say is in crates of theirs.
//!
//! | module | what |
//! | --- | --- |
//! | `encoder`, `decoder`, `link` | packets of messages |
//! | `direction`, `cold` | rare messages: generated types, field by field |
//! | `rows` | messages that tasks cause, which share columns |
//! | `kinds` | the numbers of objects, of all planes |
//! | `node_error` | what goes wrong in a process |
//! | [`trace`] | what server and worker share when the cluster is traced |

mod cold;
mod decoder;
mod direction;
mod encoder;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod kinds;
mod link;
mod node_error;
mod rows;
pub mod trace;

use std::time::Duration;

use bytes::Bytes;
use treadle_codec::generated;
use treadle_net::Options;

pub use cold::{decode_hello, decode_welcome, encode_hello, encode_hello_of, encode_welcome};
pub use decoder::Decoder;
pub use direction::Message;
pub use encoder::Encoder;
pub use kinds::{HELLO, MESSAGES, WELCOME};
pub use link::{Link, Packet, introduce};
pub use node_error::{NodeError, answer_fits, call_fits};
pub use rows::Notice;
pub use treadle_codec::WireError;
pub use treadle_messages::{LARGEST_MESSAGE, LARGEST_VALUE, fits};

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
pub const PROTOCOL: u32 = 11;

/// The longest [`HELLO`], in bytes.
pub const LONGEST_HELLO: usize = 1 << 16;

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
