//! Rows of a shuffle server as objects of a remote store: HDFS, S3-compatible stores, and file systems that are
//! mounted.
//!
//! | module | concept |
//! | --- | --- |
//! | `location` | the URL that names a store, and a place in it |
//! | `store` | a connection to a store: its client, its objects, the directories that are kept |
//! | `manifest` | what a process says of its directory |
//! | `lease` | whose objects are removed by others: those of processes that have died |
//! | `absent` | what is in the place of `store` without the Cargo feature `stores` |
//! | `error` | what can go wrong |
//!
//! All calls wait, with a bound. Several threads may call at once: the memory of what is under way has a bound,
//! whoever asks.

#[cfg(not(feature = "stores"))]
mod absent;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "stores")]
mod lease;
mod location;
#[cfg(any(test, feature = "fuzzing", feature = "stores"))]
mod manifest;
#[cfg(feature = "stores")]
mod store;

#[cfg(not(feature = "stores"))]
pub use absent::{Folder, Object, Store, Upload};
pub use error::RemoteError;
pub use location::Location;
#[cfg(feature = "stores")]
pub use store::{Folder, Object, Store, Upload};

/// Bytes of a part of an object: it is sent in one request, and read in one.
pub const PART: usize = 8 << 20;
/// Bytes that an object takes while it is written: the part that is filled, one that waits, and four on their way.
pub const WRITING: u64 = 6 * PART as u64;
