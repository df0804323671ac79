//! What nodes tell each other.
//!
//! Between two neighbours messages arrive in order, or the connection breaks.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use smallvec::SmallVec;
use treadle_types::{Cause, ClientId, WorkerId};

use crate::{Runs, Shape};

/// One call of a session to some engines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CastId {
    pub session: ClientId,
    /// From 1, increasing by one.
    pub number: u64,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Neighbour {
    /// The top of a session, by its session.
    Top(ClientId),
    /// An engine.
    Worker(WorkerId),
}

/// An engine, and how to reach it. An id never changes its meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub worker: WorkerId,
    /// Nodes with the same number share memory.
    pub host: u32,
    /// Where its host listens.
    pub address: Arc<str>,
}

/// Which offers take members from which: a member belongs to the tree of the highest version that
/// offered it. Each repair makes a version, which is unique by its maker, so no version has a cycle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Version {
    /// One more than that of what is repaired.
    pub count: u32,
    /// Who repaired; `None`: the top.
    pub by: Option<WorkerId>,
}

/// See that all members get the cast, and bring me their results.
///
/// If `size` is at most [`Config::inline`](crate::Config), the payload's bytes travel in the same
/// message.
#[derive(Clone, PartialEq, Debug)]
pub struct Offer {
    pub cast: CastId,
    /// Ids of workers. The neighbour has been [introduced](Message::Introduce) to all of them.
    pub members: Runs,
    /// For the members in the order of their ids: what came before.
    pub previous: Previous,
    /// Bytes of the payload.
    pub size: u64,
    /// The shape of the tree.
    pub shape: Shape,
    /// Which tree.
    pub version: Version,
    /// The payload follows at once; otherwise when it is asked for with [`Message::Want`].
    pub fresh: bool,
    /// It has no place in the order of casts: it is run as soon as the payload is whole, and no other
    /// cast waits for it. `previous` is 0 for all members.
    pub unordered: bool,
    /// The payload comes as a [`Message::Mapping`], when the sender has it whole, not in chunks.
    pub mapped: bool,
    /// Members that have not begun answer that they are aborted.
    pub aborted: bool,
    /// What the sender knows to be settled.
    pub settled: Settled,
}

/// The number of the cast of the session that came before at each member, in the order of their ids:
/// so many members with this number. 0: there was none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Previous(pub SmallVec<[(u32, u64); 1]>);

/// The numbers of a session whose results are all at the top.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settled(pub Runs);

/// What came of a cast at a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The engine ran it. Its result, a value or an exception, has so many bytes; 0 is a result
    /// too, and costs nothing on the way.
    Finished {
        /// Bytes.
        size: u64,
    },
    /// Its host had no memory for the payload, or its limit is lower; the reason.
    Refused(Arc<str>),
    /// It was aborted before the engine began.
    Aborted,
    /// The scheduler says that the engine is gone. Made at the top, and never sent.
    Lost(Cause),
    /// Nobody could reach the engine, although the scheduler can. Made at the top, and never sent.
    Unreachable,
}

/// The same outcome of some members. If they finished with a size that is not 0, the bytes of each
/// travel in the same message, in the order of the ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CastResult {
    /// The cast's number.
    pub number: u64,
    /// Ids of workers.
    pub engines: Runs,
    /// What came of it.
    pub outcome: Outcome,
}

/// Text that a running engine wrote. It may be lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The cast's number.
    pub number: u64,
    pub engine: WorkerId,
    /// What: the nodes on the way do not look at it.
    pub text: Bytes,
}

/// What one node tells another.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Down: who members of later offers are. Each is said once on a connection.
    Introduce(Vec<Member>),
    /// Down: a cast.
    Offer(Box<Offer>),
    /// Down: bytes of the payload, which travel in the same message.
    Chunk {
        cast: CastId,
        /// Where they begin.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// Down, within a host: the whole payload, as memory that comes with the message.
    Mapping { cast: CastId },
    /// Up: send me the payload from this offset; its size: send me no more.
    Want {
        cast: CastId,
        /// The first byte that is wanted.
        offset: u64,
    },
    /// Up: the payload is here up to this offset.
    Have {
        cast: CastId,
        /// The first byte that is not here.
        offset: u64,
    },
    /// Up: you are responsible for these members again.
    Decline {
        cast: CastId,
        /// Ids of workers.
        members: Runs,
    },
    /// Up: results, many in one message. Without any: the sender is there, and owes some.
    Results {
        session: ClientId,
        results: Vec<CastResult>,
    },
    /// Up: text that engines wrote.
    Outputs {
        session: ClientId,
        /// The text, in order for each engine.
        outputs: Vec<Output>,
    },
    /// Both ways: casts that need not be kept any more.
    Settled { session: ClientId, settled: Settled },
    /// Down: members that have not begun answer that they are aborted.
    Abort {
        cast: CastId,
        /// A member that has begun is interrupted.
        interrupt: bool,
    },
}

impl core::fmt::Debug for CastId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}.{}", self.session, self.number)
    }
}
