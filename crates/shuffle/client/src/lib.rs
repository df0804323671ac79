//! A client of Treadle's shuffle service, for engines of any kind: without Python, and without a JVM.
//!
//! A shuffle moves rows from *maps* (its inputs) to *partitions* (its outputs). The service keeps them on servers of its own,
//! each row in two copies, so that no row is lost when the process that wrote it ends, or when a server is lost.
//!
//! 1. [`Service::connect`] connects to `treadle shuffle-master`, or takes the servers of another registry.
//! 2. [`Service::register`] registers a shuffle. Other processes [attach](Service::attach) to it by its number.
//! 3. [`Shuffle::writer`] takes the rows of a map, and pushes them to the servers of their partitions. It returns a
//!    [`Receipt`].
//! 4. [`Shuffle::commit`] has the servers compare their rows with the receipts that the caller has chosen, one for each
//!    map.
//! 5. [`Shuffle::reader`] returns the rows of a partition: exactly those of these receipts, each one once, or an error.
//!
//! Maps and partitions may be written and read in any order, by any number of threads and processes.
//!
//! ```
//! use std::time::Duration;
//! use treadle_shuffle_client::local::{Master, Server, ServerSpec};
//! use treadle_shuffle_client::{Error, Options, Service, Spec, Wait};
//!
//! # fn main() -> Result<(), Error> {
//! // A service in this process. Elsewhere it is `treadle shuffle-master` and some `treadle shuffle-server`.
//! let options = Options::new().secret("what the processes of a cluster share")?;
//! let mut wait = Wait::within(Duration::from_secs(60));
//! let master = Master::start(&options)?;
//! # let directory = tempfile::tempdir().expect("there is a directory for temporary files");
//! # let directory = directory.path();
//! let servers = ["a", "b"].map(|name| {
//!     let spec = ServerSpec::new(name, directory.join(name));
//!     Server::start(&master.address(), spec, &options, &mut Wait::within(Duration::from_secs(60)))
//! });
//! # for server in &servers { assert!(server.is_ok(), "{server:?}"); }
//!
//! let service = Service::connect(&master.address(), options, &mut wait)?;
//! let shuffle = service.register(&Spec::new(2, 4).name("words"), &mut wait)?;
//! let mut receipts = Vec::new();
//! for (map, text) in [(0, "the warp and the weft"), (1, "the shuttle")] {
//!     let mut writer = shuffle.writer(map);
//!     for word in text.split(' ') {
//!         writer.write(word.len() as u32 % 4, word.as_bytes())?;
//!     }
//!     receipts.push(writer.finish(&mut wait)?);
//! }
//! let generation = shuffle.commit(&receipts, &mut wait)?;
//! let words = shuffle.reader(generation).read(3, &mut wait)?;
//! let words: Vec<&[u8]> = words.iter().collect();
//! assert_eq!(words, [&b"the"[..], b"and", b"the", b"the", b"shuttle"]);
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//!
//! Each call that waits takes a [`Wait`]: when it gives up, and a function that may interrupt it. The function is called
//! about every 25 ms, on the thread that waits, without a lock held. No call needs an asynchronous runtime; in one, call
//! from a thread that may block.
//!
//! # What is lost
//!
//! The calls try again by themselves while servers are lost and other copies are there. When no copy of some rows is left,
//! [`Error::RowsLost`] names the maps. Write exactly these again, with [`Writer::again`], and commit with their new receipts
//! and those that the other maps have.
//!
//! # Memory
//!
//! A [`Writer`] keeps the rows of its map ([`Writer::bytes`]), and as much again while it pushes. At most a window of them is on
//! its way to each server. A [`Rows`] is the memory of one partition, or of some of its maps ([`Reader::read_maps`]).
//!
//! # Who is trusted
//!
//! Each process proves the secret of the service, or has a certificate ([`Options::tls`]). Each batch has a checksum, and
//! servers and readers compare counts and digests of the rows.
//!
//! # Modules
//!
//! | module | concept |
//! | --- | --- |
//! | `options`, `kind` | how a process connects; what a shuffle is, and its rows |
//! | `service`, `masters` | the connection, and those to masters of other applications; where these are |
//! | `shuffle`, `writer`, `reader`, `receipt` | records of bytes, from maps to partitions |
//! | `raw`, `source` | the same for rows in memory of the host |
//! | `attempts` | how often a call is tried |
//! | `verdict` | what to do when rows are not there |
//! | `local` | a service in this process |

#![deny(missing_docs)]

mod attempts;
mod error;
mod kind;
pub mod local;
mod masters;
mod options;
mod raw;
mod reader;
mod receipt;
mod service;
mod shuffle;
pub mod source;
mod verdict;
mod writer;

pub use error::{At, Error, Part};
pub use kind::Kind;
pub use options::{Options, Spec};
pub use raw::{Asked, Attempt, RawShuffle};
pub use reader::{Reader, Rows};
pub use receipt::Receipt;
pub use service::Service;
pub use shuffle::Shuffle;
pub use treadle_compress::Codec;
pub use treadle_net::{NetError, Wait};
pub use treadle_shuffle::{Generation, ReceiptError};
pub use writer::Writer;
