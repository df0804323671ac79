//! What a node knows of a session and of each of its casts.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use smallvec::SmallVec;
use treadle_types::WorkerId;

use crate::run_map::RunMap;
use crate::{Neighbour, Outcome, Output, Runs, Shape, Version};

#[derive(Default)]
pub(crate) struct Session {
    /// What is not settled, by number.
    pub(crate) casts: BTreeMap<u64, Cast>,
    pub(crate) settled: Runs,
    /// Who is to hear what is settled.
    pub(crate) owes: BTreeSet<Neighbour>,
    /// Casts with results that a parent may not have heard.
    pub(crate) dirty: BTreeSet<u64>,
    /// What the engine runs after which number.
    pub(crate) after: BTreeMap<u64, u64>,
    /// Text on its way up.
    pub(crate) outputs: Vec<Output>,
    pub(crate) output_bytes: usize,
    /// When something was last heard from above, and how often was asked since.
    pub(crate) heard: Duration,
    pub(crate) asks: u32,
}

pub(crate) struct Cast {
    pub(crate) size: u64,
    /// It has no place in the order of its session.
    pub(crate) unordered: bool,
    pub(crate) shape: Shape,
    /// The highest version that was seen or made here.
    pub(crate) version: Version,
    pub(crate) aborted: bool,
    pub(crate) interrupted: bool,
    /// Those for whom the node was asked, and has not declined.
    pub(crate) members: Runs,
    /// Those of them that have no result here.
    pub(crate) waiting: Runs,
    pub(crate) previous: RunMap,
    /// Results in the order in which they came.
    pub(crate) log: Vec<(Runs, Outcome)>,
    pub(crate) parents: SmallVec<[Parent; 1]>,
    pub(crate) children: Vec<Child>,
    /// What is placed when there is memory.
    pub(crate) deferred: Vec<Placement>,
    /// How badly a child has failed here; at [`HOPELESS`] it is not tried again.
    pub(crate) failed: BTreeMap<u64, u32>,
    /// How often a child was lost: the more, the more are tried at once.
    pub(crate) repairs: u32,
    pub(crate) payload: Payload,
    pub(crate) own: Option<Own>,
    /// Top: members that nobody could reach, and since when for how many tries.
    pub(crate) parked: Runs,
    /// Top: members that have aborted it, and not finished what came before.
    pub(crate) skipped: Runs,
    pub(crate) trouble: BTreeMap<u64, Trouble>,
}

/// A connection that broke counts 1, one that could not be made this.
pub(crate) const HOPELESS: u32 = 2;

pub(crate) struct Parent {
    pub(crate) who: Neighbour,
    /// Whom it asked for.
    pub(crate) asked: Runs,
    /// How much of the log was reported to it.
    pub(crate) reported: usize,
    /// What it has asked for since, of that part of the log.
    pub(crate) again: Runs,
    /// It sends the payload as a mapping.
    pub(crate) mapped: bool,
}

pub(crate) struct Child {
    pub(crate) who: WorkerId,
    /// Everybody whom it was ever asked for.
    pub(crate) asked: Runs,
    /// Those for whom it is responsible.
    pub(crate) given: SmallVec<[Given; 1]>,
    pub(crate) flow: Flow,
}

/// Members that a child was offered.
pub(crate) struct Given {
    pub(crate) members: Runs,
    pub(crate) version: Version,
    pub(crate) fresh: bool,
    pub(crate) since: Duration,
    /// Not, while there is no connection.
    pub(crate) sent: bool,
}

/// How a child gets the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Not from here, or it has it.
    None,
    /// As a mapping when it is whole.
    Mapping,
    /// In chunks: up to where they were sent, and have arrived.
    Chunks { sent: u64, acked: u64 },
}

pub(crate) struct Placement {
    pub(crate) members: Runs,
    pub(crate) version: Version,
    pub(crate) fresh: bool,
}

pub(crate) struct Payload {
    pub(crate) have: u64,
    /// Up to where the source knows it.
    pub(crate) acked: u64,
    pub(crate) source: Option<Neighbour>,
    pub(crate) memory: Memory,
    /// When something came.
    pub(crate) progress: Duration,
    /// How often another parent was asked because nothing came.
    pub(crate) stalls: u32,
}

/// Memory for the payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// It was not asked for.
    None,
    /// The answer is awaited. `wants`: the source has to be asked for the payload then.
    Asked { mapped: bool, wants: bool },
    /// It is there; `mapped`: as long as the payload comes as a mapping.
    Granted { mapped: bool },
    /// There is none.
    Refused(Arc<str>),
}

/// What the node's own engine does about a cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// Its turn has not come, or the payload is not whole.
    Waiting,
    /// It waits for the engine.
    Ready,
    Running,
    Done,
}

/// A member that nobody could reach.
pub(crate) struct Trouble {
    pub(crate) since: Duration,
    pub(crate) last: Duration,
    pub(crate) tries: u32,
}

impl Cast {
    pub(crate) fn new(size: u64, unordered: bool, shape: Shape, now: Duration) -> Self {
        Self {
            size,
            unordered,
            shape,
            version: Version::default(),
            aborted: false,
            interrupted: false,
            members: Runs::new(),
            waiting: Runs::new(),
            previous: RunMap::default(),
            log: Vec::new(),
            parents: SmallVec::new(),
            children: Vec::new(),
            deferred: Vec::new(),
            failed: BTreeMap::new(),
            repairs: 0,
            payload: Payload {
                have: 0,
                acked: 0,
                source: None,
                memory: Memory::None,
                progress: now,
                stalls: 0,
            },
            own: None,
            parked: Runs::new(),
            skipped: Runs::new(),
            trouble: BTreeMap::new(),
        }
    }

    /// A parent asks for `members`. Returns whether there is something to say again: of some of them it
    /// asks for the first time, and they have run already.
    pub(crate) fn is_asked(&mut self, from: Neighbour, members: &Runs, mapped: bool) -> bool {
        if self.parent(from).is_none() {
            self.parents.push(Parent {
                who: from,
                asked: Runs::new(),
                // Older results of its members are in `again`.
                reported: self.log.len(),
                again: Runs::new(),
                mapped,
            });
        }
        let done = self.members.difference(&self.waiting);
        let parent = self.parent(from).expect("it was added");
        let again = members.difference(&parent.asked).intersection(&done);
        parent.again = parent.again.union(&again);
        parent.asked = parent.asked.union(members);
        parent.mapped = mapped;
        !parent.again.is_empty()
    }

    /// Takes those of `members` that wait back from children, and from what is deferred, that know an
    /// older version only.
    pub(crate) fn take_back(&mut self, members: &Runs, version: Version) -> Runs {
        let wanted = members.intersection(&self.waiting);
        let mut taken = Runs::new();
        for child in &mut self.children {
            taken = taken.union(&child.take(&wanted, Some(version)));
        }
        let older = |placement: &&mut Placement| placement.version < version;
        for placement in self.deferred.iter_mut().filter(older) {
            taken = taken.union(&placement.members.intersection(&wanted));
            placement.members = placement.members.difference(&wanted);
        }
        taken
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.payload.have == self.size
    }

    /// Whether more of the payload is to come.
    pub(crate) fn needs_payload(&self) -> bool {
        !self.is_whole() && !self.aborted && !matches!(self.payload.memory, Memory::Refused(_))
    }

    pub(crate) fn parent(&mut self, who: Neighbour) -> Option<&mut Parent> {
        self.parents.iter_mut().find(|parent| parent.who == who)
    }

    pub(crate) fn child(&mut self, who: Neighbour) -> Option<&mut Child> {
        let is_it = |child: &&mut Child| Neighbour::Worker(child.who) == who;
        self.children.iter_mut().find(is_it)
    }

    /// A version above all that were seen, made by `by`.
    pub(crate) fn next_version(&mut self, by: Option<WorkerId>) -> Version {
        let count = self.version.count.saturating_add(1);
        self.version = Version { count, by };
        self.version
    }
}

impl Payload {
    /// How long nothing may come: longer each time, since what a parent has sent is still under way
    /// when it is asked again.
    pub(crate) fn patience(&self, stall: Duration) -> Duration {
        stall * (1 << self.stalls.min(4))
    }
}

impl Child {
    /// Takes those of `members` that the child has been given before `version` away from it.
    pub(crate) fn take(&mut self, members: &Runs, version: Option<Version>) -> Runs {
        let mut taken = Runs::new();
        for given in &mut self.given {
            if version.is_none_or(|version| given.version < version) {
                taken = taken.union(&given.members.intersection(members));
                given.members = given.members.difference(members);
            }
        }
        self.given.retain(|given| !given.members.is_empty());
        taken
    }

    /// Those for whom it is responsible.
    pub(crate) fn responsible(&self) -> Runs {
        let given = self.given.iter();
        given.fold(Runs::new(), |all, given| all.union(&given.members))
    }

    /// Whether it has heard of the cast.
    pub(crate) fn knows(&self) -> bool {
        !self.asked.is_empty()
    }
}
