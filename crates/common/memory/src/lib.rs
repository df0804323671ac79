//! Memory that outlives a copy.
//!
//! - [`Pool`] and [`Buffer`]: private memory to receive into. First touch of fresh pages costs one
//!   to two seconds a GiB on small virtual machines, touched pages nothing: big buffers are kept.
//! - [`Segments`] (Linux): memory that another process of this host can map instead of copying,
//!   handed out like `malloc` does. An [`Export`] is a snapshot: what its receiver sees never
//!   changes, whatever the sender does with its array.
//! - [`Mapping`] (Linux): the receiver's side. A hostile sender can crash nobody. A [`Handover`]
//!   gives what is mapped to a third process. A [`Foreign`] file that is kept need not be passed
//!   again.
//! - [`MappedFile`] (Linux): bytes of a file on disk, to read.
//! - What is kept for reuse, and not used for 30 seconds, goes back to the system, by a thread that runs
//!   while something is kept.
//! - [`Reclaim`] (Linux): the same for a process with a limit, and for what the C allocator keeps.
//!   [`keep_below`]: before more is made.
//! - [`Ledger`]: who keeps how much of the process's memory, and how much each may.

mod error;
mod expiry;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod foreign;
mod fork;
mod heap;
mod idle;
mod ledger;
mod limit;
#[cfg(target_os = "linux")]
mod mapped_file;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod memfd;
#[cfg(target_os = "linux")]
mod pagemap;
mod pool;
#[cfg(target_os = "linux")]
mod received;
#[cfg(target_os = "linux")]
mod reclaim;
mod region;
#[cfg(target_os = "linux")]
mod room;
#[cfg(target_os = "linux")]
mod segments;
mod size_class;
#[cfg(target_os = "linux")]
mod withheld;

pub use error::MemoryError;
#[cfg(target_os = "linux")]
pub use file::FileId;
#[cfg(target_os = "linux")]
pub use foreign::Foreign;
pub use heap::{occupied, resident, share_heap, trim_heap};
pub use ledger::{Account, Consumer, Ledger, Registration, Stock, Usage};
pub use limit::memory_limit;
#[cfg(target_os = "linux")]
pub use mapped_file::MappedFile;
#[cfg(target_os = "linux")]
pub use mapping::Mapping;
pub use pool::{Buffer, Pool};
#[cfg(target_os = "linux")]
pub use received::Handover;
#[cfg(target_os = "linux")]
pub use reclaim::{KEPT, Limits, Reclaim, Taken, kept};
#[cfg(target_os = "linux")]
pub use room::{keep_below, shrink};
#[cfg(target_os = "linux")]
pub use segments::{Export, SegmentId, Segments, Stats};
#[cfg(target_os = "linux")]
pub use withheld::{give_back, withhold};
