//! The stand-alone shuffle service: `treadle-shuffle`, the pure core, in processes of its own. See
//! `docs/internals/shuffle.md`.
//!
//! ```text
//!            Hello, Call, ToMaster                  Hello, ToMaster
//!   member ───────────────────────▶ ShuffleMaster ◀──────────────── ShuffleServer
//!     │    ◀───────────────────────               ────────────────▶     ▲
//!     │      Welcome, Answer, ToNode, Met, Lost                         │
//!     └──────────────── Push, Ask, Fetch (treadle-shuffle-node) ────────┘
//! ```
//!
//! | module | concept |
//! | --- | --- |
//! | `wire` | what a member and the master tell each other, beside the messages of the machines |
//! | `protocol` | which versions of these a process speaks |
//! | `records` | what shuffles leave behind |
//! | `room` | what servers announce, and how much they are given for it |
//! | `master` | the process that assigns partitions; it knows all members |
//! | `joining` | how a process joins a master, and hears it |
//! | `servers` | where a master learns of servers |
//! | `member` | the connection of a process to the master, with the shuffle plane of that process |
//! | `observer` | what a member does with rows, for the trace of its process |
//! | `page` | the dashboard of a master and of a server |
//! | `place` | the part of the servers where an application's shuffles are to be |
//! | `server` | a member that holds partitions, and that others connect to |
//!
//! A member that is connected is there, one whose connection has ended is lost. A process that comes
//! back connects anew and gets another number: to the machines it is another server.

mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod joining;
mod master;
mod member;
mod observer;
mod page;
mod place;
mod protocol;
mod records;
mod room;
mod server;
mod servers;
mod wire;

use treadle_shuffle::Config;

pub use error::ServiceError;
pub use master::{MasterOptions, RegistryOptions, ShuffleMaster};
pub use member::{About, Member, MemberOptions};
pub use observer::Observer;
pub use place::Place;
pub use server::{ServerOptions, ShuffleServer};

/// The service of connections to the master, in their handshake.
pub const SERVICE: u32 = 3;

/// The service of connections of masters to servers.
pub const LINKS: u32 = 4;

/// The settings of the machines in a service: windows follow the time of answers, and a copy of a group
/// takes no further transfers when it has a GiB. Readers that share a partition read what is theirs.
pub fn config() -> Config {
    Config {
        least_window: 1 << 20,
        split: 1 << 30,
        stripes: 16,
        ..Config::default()
    }
}
