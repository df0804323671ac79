//! How rows move from maps to partitions; the design is `docs/internals/shuffle.md`.
//!
//! Five machines. [`Master`] assigns partitions to servers, commits, and says what has to run again.
//! [`Server`] holds partitions. [`Writer`] pushes the rows of transfers. [`Reader`] gets those of a
//! partition. [`Device`] orders what a server reads and writes on a disk. Each takes events, with the time, and returns effects as data. None of them sees a row:
//! the host keeps the bytes by the names that the effects give.
//!
//! | module | concept |
//! | --- | --- |
//! | `message` | what the processes tell each other |
//! | `receipt` | what transfers leave, and their sum |
//! | `layout`, `plan` | where partitions live; that as it is told to others |
//! | `master` | registration, loss, commit, the end |
//! | `server` | batches: taking them in, deduplication, memory and files, sealing, reading; the masters it serves |
//! | `device` | a disk: whose request is next, what the disk does, how many reads it has time for |
//! | `writer` | transfers: what is pushed where, within which window, and the receipt |
//! | `lease` | applications that are there, and what is cleaned when they are not |
//! | `reader` | a partition: where to get it, and whether it is all of it |
//! | `usage` | what processes did for a shuffle; `treadle-shuffle-history` makes records of that |
//!
//! The crate is pure: no IO, clock, threads or randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod config;
mod device;
mod error;
mod layout;
mod lease;
mod master;
mod message;
mod plan;
mod reader;
mod receipt;
mod server;
mod usage;
mod writer;

pub use config::{Config, Guard};
pub use device::{
    Access, Device, DeviceEffect, DeviceEvent, DeviceOptions, DeviceStanding, Limit, Outcome,
    Request, Served,
};
pub use error::{Broken, ShuffleError};
pub use lease::{ApplicationId, Leases, MOST_PRIORITY, Tenant};
pub use master::{Master, MasterEffect, MasterEvent, Progress, Spec, Standing};
pub use message::{
    Answer, Ask, CommitError, Fetch, FromServer, MapRange, Push, ReadPiece, Refusal, Seal,
    ToMaster, ToNode, ToServer, Verdict,
};
pub use plan::{Group, Plan, Uploaded};
pub use reader::{ReadError, Reader, ReaderEffect, ReaderEvent};
pub use receipt::{Chosen, Commit, Expected, Receipt, ReceiptError, Receipts, Share, Winners};
pub use server::{
    Adopted, ConnectionId, Inventory, LinkId, Place, Remote, Sent, Server, ServerEffect,
    ServerEvent, Storage, ToSend,
};
pub use treadle_shuffle_blocks::{
    AttemptId, BatchId, Generation, GroupId, RowDigest, ServerId, ShuffleId, Tally, Transfer, block,
};
pub use treadle_shuffle_maps::MapSet;
pub use treadle_shuffle_rates::Intake;
pub use usage::Usage;
pub use writer::{Gathered, TransferError, Writer, WriterEffect, WriterEvent};
