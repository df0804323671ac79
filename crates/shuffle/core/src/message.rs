//! What the processes tell each other.
//!
//! ```text
//! master ──ToNode──▶ every process that takes part     plans, seals, the end
//! master ◀─ToMaster─ every process that takes part     receipts' sums, verdicts, damage
//! writer, reader ──ToServer──▶ server                  announced pushes, questions, reads
//! writer, reader ◀─FromServer─ server                  what came of each
//! ```
//!
//! A connection keeps the order of what is sent on it. Rows travel beside the messages.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::Runs;

use crate::block::{Piece, stored};
use crate::{
    AttemptId, BatchId, Commit, Expected, Generation, GroupId, Plan, ServerId, ShuffleId, Tally,
    Tenant, Transfer, Uploaded, Usage,
};

/// From the master to a process: its server, its writer and its reader.
#[derive(Clone, PartialEq, Debug)]
pub enum ToNode {
    /// Where the partitions are: of a shuffle that the process asked for or takes part in, now and
    /// whenever it changes.
    Plan(Arc<Plan>),
    /// The shuffle is over, or unknown. Everything of it goes.
    Close(ShuffleId),
    /// To a server: compare what you have with this, and keep only that.
    Seal(Seal),
    /// To who sent [`ToMaster::Commit`].
    Committed {
        shuffle: ShuffleId,
        /// Which question this answers.
        ask: u64,
        /// What came of it.
        result: Result<Generation, CommitError>,
    },
}

impl ToNode {
    /// What it is about.
    pub fn shuffle(&self) -> ShuffleId {
        match self {
            Self::Plan(plan) => plan.shuffle,
            Self::Close(shuffle) | Self::Committed { shuffle, .. } => *shuffle,
            Self::Seal(seal) => seal.shuffle,
        }
    }
}

/// From a process to the master.
#[derive(Clone, PartialEq, Debug)]
pub enum ToMaster {
    /// Tell me the plan of this shuffle, and its changes.
    Join(ShuffleId),
    /// A transfer has ended well. Sent after its result was reported to the host engine.
    Transferred {
        transfer: Transfer,
        /// The groups at which it has rows.
        groups: Vec<GroupId>,
        /// How many it has in all.
        tally: Tally,
    },
    /// All receipts are there.
    Commit {
        /// Chosen by the sender; comes back in the answer.
        ask: u64,
        /// Their sum.
        commit: Commit,
    },
    /// A server has compared.
    Sealed {
        shuffle: ShuffleId,
        group: GroupId,
        /// Which round of comparisons.
        round: u32,
        /// What came of it.
        verdict: Verdict,
    },
    /// A map has other rows than it had before, which may have been read: it is not deterministic.
    Differs {
        shuffle: ShuffleId,
        /// The group at which this was seen.
        group: GroupId,
        /// The map, if it is known which.
        map: Option<u32>,
        /// Whether what was committed stays, if it was: the sender is told so then, by a
        /// [`Plan`](ToNode::Plan) that says it.
        is_late: bool,
    },
    /// Rows of a copy cannot be read any more, or are not what they were.
    Damaged {
        shuffle: ShuffleId,
        /// The copy.
        group: GroupId,
    },
    /// A copy has everything that the one has from which it was filled.
    Filled {
        shuffle: ShuffleId,
        /// The copy.
        group: GroupId,
        /// The copy that it was filled from.
        source: GroupId,
        /// Whether it was compared with the receipts.
        is_sealed: bool,
    },
    /// A sealed copy is in the remote store as a whole.
    Uploaded {
        shuffle: ShuffleId,
        /// The copy.
        group: GroupId,
        uploaded: Uploaded,
    },
    /// A copy of a group is as large as it should become.
    Full {
        shuffle: ShuffleId,
        /// The copy.
        group: GroupId,
    },
    /// A copy of a group cannot take what is pushed. What it has stays; the rest goes elsewhere.
    Poisoned {
        shuffle: ShuffleId,
        /// The copy.
        group: GroupId,
    },
    /// A server has fallen far behind the others in answering pushes: rows go elsewhere, if that can be.
    Slow {
        shuffle: ShuffleId,
        server: ServerId,
        /// How many times as long as a typical server it takes for as many bytes. 0: that is not known.
        times: u32,
    },
    /// How many bytes a copy has by partition, before it says that it has all ([`Verdict::Complete`]).
    /// Rows of attempts that do not count are among them if they are in files.
    Measured {
        shuffle: ShuffleId,
        /// The copy.
        group: GroupId,
        partitions: Runs,
        /// The bytes of each, in their order.
        sizes: Vec<u64>,
    },
    /// What the process did for a shuffle that has ended: the answer to [`ToNode::Close`].
    Used { shuffle: ShuffleId, usage: Usage },
}

/// What a group is to have.
#[derive(Clone, PartialEq, Debug)]
pub struct Seal {
    pub shuffle: ShuffleId,
    /// The generation that is being committed.
    pub generation: Generation,
    pub group: GroupId,
    /// Which round of comparisons.
    pub round: u32,
    /// What the winning attempts have here.
    pub expected: Expected,
}

/// What a comparison came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The group has exactly that, and keeps nothing else.
    Complete,
    /// It has something else.
    Short {
        /// What the winning attempts have here.
        found: Tally,
        /// A winning map that has nothing here.
        missing: Option<u32>,
    },
    /// It was sealed before, with other rows.
    Differs,
}

/// Why a commit was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitError {
    /// Rows were lost meanwhile, or receipts are of what was lost before. The transfers and the barrier
    /// run again: give the task back.
    #[error("rows of shuffle {0:?} were lost: transfers and the barrier run again")]
    Again(ShuffleId),
    /// The shuffle has ended.
    #[error("shuffle {0:?} has ended")]
    Ended(ShuffleId),
    /// It was committed with other rows, and none of them is lost.
    #[error(
        "shuffle {0:?} was committed with other rows, and none of those is lost: a receipt is of a late attempt. What \
         was committed stays. If these receipts are to count, end the shuffle, and register another one"
    )]
    Late(ShuffleId),
    /// Rows were damaged again and again.
    #[error(
        "rows of shuffle {shuffle:?} in group {group:?} are not those that were sent, although they \
         were made again: {expected:?} were sent, and {found:?} are there (input without rows: \
         {missing:?}). Check the memory and the disks of server {:?}",
        .group.server
    )]
    Damaged {
        shuffle: ShuffleId,
        group: GroupId,
        /// What its receipts say.
        expected: Tally,
        /// What it has.
        found: Tally,
        /// An input that has nothing there.
        missing: Option<u32>,
    },
}

/// To a server, from a writer or a reader.
#[derive(Clone, PartialEq, Debug)]
pub enum ToServer {
    /// A batch that waits to be let in.
    Push(Push),
    /// Several of them. They are let in together, or none is. Each is answered by itself.
    Pushes { pushes: Vec<Push> },
    /// Does somebody have the rows of this transfer there already?
    Ask(Ask),
    /// This transfer has failed: its rows are not needed.
    Abandon { group: GroupId, transfer: Transfer },
    /// The rows of a partition, please.
    Fetch(Fetch),
    /// They are not wanted any more.
    Cancel {
        /// [`Fetch::read`].
        read: u64,
    },
    /// From a server whose copy was sent to this one: that is all of it.
    Adopt {
        shuffle: ShuffleId,
        /// The copy that is addressed.
        group: GroupId,
        /// The copy that it was filled from.
        source: GroupId,
        /// What the copy was sealed with, if it was.
        expected: Option<Expected>,
    },
}

/// A batch that waits to be let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Push {
    pub shuffle: ShuffleId,
    pub group: GroupId,
    pub batch: BatchId,
    /// What is in it.
    pub tally: Tally,
    /// Its length in bytes, with header and table.
    pub length: u64,
}

impl ToServer {
    /// Pushes have no more bytes than this together, if they are said in one message.
    pub const TOGETHER: u64 = 512 << 10;
    /// So many pushes are said in one message, at most.
    pub const MOST_TOGETHER: usize = 64;

    /// Pushes in their order, several in a message where they are small.
    pub(crate) fn together(pushes: &[Push]) -> Vec<Self> {
        let mut messages = Vec::new();
        let mut rest = pushes;
        while let Some((first, others)) = rest.split_first() {
            let mut bytes = first.length;
            let more = others
                .iter()
                .take(Self::MOST_TOGETHER - 1)
                .take_while(|push| {
                    bytes = bytes.saturating_add(push.length);
                    bytes <= Self::TOGETHER
                });
            let pushes;
            (pushes, rest) = rest.split_at(1 + more.count());
            messages.push(match pushes {
                [push] => Self::Push(*push),
                pushes => Self::Pushes {
                    pushes: pushes.to_vec(),
                },
            });
        }
        messages
    }
}

impl Push {
    /// What it is known by on a connection.
    pub fn name(&self) -> (ShuffleId, GroupId, BatchId) {
        (self.shuffle, self.group, self.batch)
    }
}

/// Whether somebody has pushed these rows already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub group: GroupId,
    /// Who asks.
    pub transfer: Transfer,
    /// What it has for the group.
    pub tally: Tally,
}

/// A read of one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Chosen by the reader, unique on its connection ([`Reader::read_of`](crate::Reader::read_of)).
    pub read: u64,
    pub shuffle: ShuffleId,
    /// Which generation was committed.
    pub generation: Generation,
    pub group: GroupId,
    pub partition: u32,
    /// Rows of these maps only. `None`: of all.
    pub maps: Option<MapRange>,
    /// Who reads, and pays for it. `None`: whose the shuffle is.
    pub reader: Option<Tenant>,
}

/// Maps with consecutive numbers. Readers that share a partition have ranges that do not overlap: each
/// batch has one map, and so one reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MapRange {
    pub first: u32,
    /// The one after the last.
    pub end: u32,
}

impl MapRange {
    /// Part `part` of `parts` of about equal length of `maps` maps.
    pub fn part(maps: u32, part: u32, parts: u32) -> Self {
        let at = |part: u32| (u64::from(maps) * u64::from(part) / u64::from(parts.max(1))) as u32;
        Self {
            first: at(part),
            end: at(part + 1),
        }
    }

    /// Whether a map is among them.
    pub fn contains(&self, map: u32) -> bool {
        (self.first..self.end).contains(&map)
    }
}

/// What a server answers.
#[derive(Clone, PartialEq, Debug)]
pub enum FromServer {
    /// The batch is in memory here, or was before. Its rows need not be kept.
    Acked {
        shuffle: ShuffleId,
        group: GroupId,
        batch: BatchId,
    },
    /// The batch is not taken.
    Refused {
        shuffle: ShuffleId,
        group: GroupId,
        batch: BatchId,
        /// Why.
        reason: Refusal,
    },
    /// The answer to [`Ask`].
    Answer {
        group: GroupId,
        /// Who asked.
        transfer: Transfer,
        answer: Answer,
    },
    /// The answer to [`Fetch`], before the rows: what they are.
    Rows {
        read: u64,
        /// All of them, with the low half of the digest.
        tally: Tally,
        /// The pieces, in the order in which they come.
        pieces: Vec<ReadPiece>,
    },
    /// A partition cannot be read.
    Unread {
        read: u64,
        /// Why.
        reason: Refusal,
    },
}

/// Rows of one batch for one partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReadPiece {
    pub batch: BatchId,
    pub rows: u64,
    pub bytes: u64,
    /// The low half of the digest.
    pub digest: u32,
    /// Its bytes, if it is compressed; 0: it is not.
    pub packed: u32,
}

impl ReadPiece {
    /// A piece of a batch.
    pub fn new(batch: BatchId, piece: &Piece) -> Self {
        Self {
            batch,
            rows: piece.tally.rows,
            bytes: piece.tally.bytes,
            digest: piece.tally.digest as u32,
            packed: piece.packed,
        }
    }

    /// The bytes that it takes.
    pub fn stored(&self) -> u64 {
        stored(self.packed, self.bytes)
    }

    /// Its counts.
    pub fn tally(&self) -> Tally {
        Tally {
            rows: self.rows,
            bytes: self.bytes,
            digest: u64::from(self.digest),
        }
    }
}

/// Whether rows are there already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This attempt has pushed exactly these rows, and they are kept.
    Have(AttemptId),
    /// The same, and the group is complete: of the attempts of this map it keeps only this one.
    Won(AttemptId),
    /// Push them.
    Missing,
    /// Others were there, and may have been read.
    Differs,
    /// The group is not here.
    Refused(Refusal),
}

/// Why a server does not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The process is another one than the one that was meant.
    #[error("another server, {0:?}, is at this address")]
    Stranger(ServerId),
    /// It has not heard of the shuffle, and waited for that.
    #[error("the server does not know the shuffle")]
    Unknown,
    /// It does not have the group, in this generation.
    #[error("the partitions were assigned again, in generation {0:?}")]
    Stale(Generation),
    /// The group is complete: ask.
    #[error("the group is complete")]
    Sealed,
    /// The group is not complete: nothing can be read.
    #[error("the group is not complete")]
    Unsealed,
    /// There is no room in memory, and writing to disk fails for this reason.
    #[error("the server has no memory left, and cannot write to its disks: {0}")]
    NoRoom(Arc<str>),
    /// The server has more to do than it can, and the application more than its share of that: come again
    /// after so long.
    #[error("the server is overloaded, and has no more for this application for {0:?}")]
    Sleep(Duration),
    /// Too much waits already: come again.
    #[error("the server is busy")]
    Busy,
    /// Not all pushes of a message can be let in now: come again by itself.
    #[error("the server takes this batch only by itself")]
    Alone,
    /// The bytes are no batch, or another one.
    #[error("the bytes are not those of the announced batch")]
    Malformed,
    /// The rows are not what they were, or cannot be read. The master knows.
    #[error("rows cannot be read from disk, or are not those that were written")]
    Damaged,
}
