//! What happens to a master, and what it wants done.

use alloc::vec::Vec;

use treadle_types::Runs;

use crate::{Generation, Intake, ServerId, ShuffleId, Tally, Tenant, ToMaster, ToNode};

/// What a shuffle is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Whose it is, for servers that are overloaded.
    pub tenant: Tenant,
    /// How many inputs it has.
    pub maps: u32,
    /// How many partitions it has.
    pub partitions: u32,
    /// Those that somebody wants.
    pub outputs: Runs,
    /// A shuffle whose outputs are read together with those of this one (the other side of a merge):
    /// partitions of the same number are at the same server.
    pub aligned: Option<ShuffleId>,
    /// At how many servers, in different failure domains, each row is to be: 1 or 2. Fewer, if there are
    /// not so many domains.
    pub copies: u32,
    /// A server that leaves hands its rows over. Always so with several copies.
    pub is_handed_over: bool,
    /// How many bytes are expected to be pushed. 0: that is not known. A shuffle with few of them is at few servers,
    /// those that have least.
    pub expected: u64,
    /// Servers that are to hold the partitions, as long as one of them is there. Empty: any.
    pub preferred: Vec<ServerId>,
    /// What an earlier shuffle of the same inputs [had committed](crate::Master::committed), if its outputs are
    /// used still: this one has to have the same.
    pub committed: Option<Tally>,
}

/// What is known of a server beside its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// What fails together: copies of a group are in different domains. Its node, unless this is said.
    pub domain: u32,
    /// How much it is to have compared to others. 0: nothing, it only pushes and reads.
    pub weight: u32,
    /// How fast it takes what is pushed: it gets rows in proportion to that.
    pub intake: Intake,
    /// Which remote store it has: servers with the same number can adopt copies of each other. 0: none.
    pub store: u64,
}

/// What happens to a master.
#[derive(Clone, PartialEq, Debug)]
pub enum MasterEvent {
    /// A server is there.
    Joined(ServerId),
    /// A server is there, and this is known of it. Without this its domain is its node, and its weight
    /// 1. For a server that is there already, this is what has changed.
    Standing {
        server: ServerId,
        standing: Standing,
    },
    /// A server is to leave: it gets no more partitions, and [`MasterEffect::Drained`] says when it
    /// has none.
    Draining(ServerId),
    /// A server is gone, and all that it held.
    Lost(ServerId),
    /// A shuffle is to be. Nothing is sent before a process asks for it.
    Register {
        /// Its number.
        shuffle: ShuffleId,
        spec: Spec,
    },
    /// Of a shuffle that nobody has asked for yet: other servers are to have its partitions, as long as there are some.
    Avoid {
        shuffle: ShuffleId,
        servers: Vec<ServerId>,
    },
    /// A shuffle is over: nobody will read it any more.
    End(ShuffleId),
    /// A process says something.
    Message { from: ServerId, message: ToMaster },
}

/// What a master wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum MasterEffect {
    /// Tell a process something.
    Send {
        /// Whom.
        to: ServerId,
        message: ToNode,
    },
    /// Tell the host engine that what these tasks did is gone: the transfers of these maps, and the
    /// barrier. Those that have no result are left alone.
    Invalidate {
        shuffle: ShuffleId,
        maps: Runs,
        /// Also what was read: the results of all outputs.
        outputs: bool,
    },
    /// Tell the user: a map returned other rows when it ran again, so everything runs again.
    NotDeterministic {
        shuffle: ShuffleId,
        /// The map, if it is known which.
        map: Option<u32>,
    },
    /// A server that is to leave holds nothing any more.
    Drained(ServerId),
}

/// How far a shuffle is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Which assignment.
    pub generation: Generation,
    /// How many inputs there are.
    pub maps: u32,
    /// How many partitions there are.
    pub partitions: u32,
    /// How many of them somebody wants.
    pub outputs: u64,
    /// Inputs whose rows are all at their servers.
    pub transferred: u64,
    /// What transfers have pushed, with those that ran again.
    pub tally: Tally,
    /// Whether partitions can be read.
    pub is_committed: bool,
}

impl Progress {
    /// What transfers come to if the inputs that are missing have as much as the others.
    pub fn expected_bytes(&self) -> u64 {
        let all = u128::from(self.tally.bytes) * u128::from(self.maps);
        u64::try_from(all / u128::from(self.transferred.max(1))).unwrap_or(u64::MAX)
    }
}
