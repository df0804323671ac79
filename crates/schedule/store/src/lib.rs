//! A worker's objects: in memory, in memory shared with other processes, or on disk, within a
//! budget.
//!
//! # The model
//!
//! An object has an id and a number of *references*: one from [`Store::put`] to [`Store::remove`],
//! and others ([`Store::retain`], [`Store::release`]). At zero it is gone, with its file. Its value is
//! there in one or more *forms*, all of the same value:
//!
//! | form | what it is | counted as |
//! | --- | --- | --- |
//! | live | an opaque [`Live`] of the embedder, say a Python object | managed: its [`Live::nbytes`] |
//! | frames | the serialised value, [`Frames`] | managed: the bytes that are not the live object's own memory |
//! | shared | frames in memory that other processes map too | shared |
//! | file | the serialised value on disk | files |
//!
//! [`Store::get`] answers with a [`Pinned`]: while it lives, the object stays in memory. Without
//! pins, an object whose forms cost managed memory is a candidate to leave it.
//!
//! Above [`Options::target`] one native thread writes the least recently used candidates to disk,
//! until what is left is at the target or below. A candidate whose value is on disk or shared
//! already only drops its other forms: a file stays until its object is freed or overwritten.
//! Above [`Options::limit`], [`Store::put`] waits for room as long as its caller allows, and then
//! hands the object back with an error. Only `put` waits: an object that a task needs is read back
//! whatever it costs, and the thread makes room after the fact.
//!
//! Files are in a [`treadle_volume::Volume`].
//!
//! A disk that fails loses nothing. The object stays in memory, the thread tries again after a
//! growing pause, [`Stats::disk_error`] says why, and a `put` that finds no room because of it
//! fails with the disk's error.
//!
//! # What runs where
//!
//! Serialising, reading and writing files, and dropping objects happen with no lock held, since an
//! embedder's object may need a lock of its own (Python's GIL). [`Live::frames`] runs on the
//! spilling thread or in [`Pinned::frames`], and the last reference to a `Live` may go on the
//! spilling thread too. Whoever calls into the store must hold no lock that these need: a thread
//! that keeps the GIL while `put` waits for room keeps the spilling thread from making it.
//!
//! The decisions are in [`ledger`], which does no IO and is tested against a naive model; the
//! format of the files, with a decoder that is a pure function, in [`file`](mod@file).

mod error;
pub mod file;
pub mod ledger;
mod object;
mod options;
mod pinned;
mod spill;
mod state;
mod stats;
mod store;
mod waits;

pub use error::{PutError, StoreError};
pub use object::{Form, Frames, Live, Memory, Overlap, StoredId};
pub use options::Options;
pub use pinned::Pinned;
pub use stats::{ObjectInfo, Stats, Tally};
pub use store::Store;
pub use waits::Waits;
