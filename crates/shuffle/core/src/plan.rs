//! Where partitions live, as others are told.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::{Generation, GroupId, ServerId, ShuffleId, Tenant};

/// A copy that was sealed and is in a remote store as a whole. It outlives its server: another one that has the
/// store can adopt it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uploaded {
    /// The object that says what the copy consists of, by its name in the store.
    pub inventory: Arc<str>,
    /// The [mark](crate::Expected::mark) of what it was sealed with.
    pub mark: u64,
}

/// Some partitions of a shuffle, and the servers that have them.
///
/// In a shuffle with one copy a group is at one server. In one with several, each group has an epoch of
/// its own, and its copies are named by [`GroupId::at`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name: that of the copy that was assigned first. It stays when that copy is lost.
    pub id: GroupId,
    pub partitions: Runs,
    /// The servers that have all of its rows.
    pub copies: Vec<ServerId>,
    /// The server that is getting all of its rows from the first copy.
    pub filling: Option<ServerId>,
    /// What a server adopts that has, or is getting, a copy without having been pushed to.
    pub uploaded: Option<Uploaded>,
    /// Whether rows may be pushed. A group that is closed keeps what it has; further rows of its
    /// partitions go to a group with a later epoch.
    pub is_open: bool,
    /// It was closed since it is large: transfers that have begun to push to it go on.
    pub is_split: bool,
}

impl Group {
    /// A group with one copy.
    pub fn new(id: GroupId, partitions: Runs) -> Self {
        Self {
            id,
            partitions,
            copies: [id.server].into(),
            filling: None,
            uploaded: None,
            is_open: true,
            is_split: false,
        }
    }

    /// Whether a transfer that has begun to push to it goes on.
    pub fn takes(&self) -> bool {
        self.is_open || self.is_split
    }

    /// The servers that have it, or are getting it.
    pub fn holders(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.copies.iter().copied().chain(self.filling)
    }

    /// The names of its copies.
    pub fn copy_ids(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.copies.iter().map(|&server| self.id.at(server))
    }
}

impl Group {
    /// Its first partition. Groups that share one partition share all, so that this names them.
    pub(crate) fn section(&self) -> u64 {
        self.partitions.first().unwrap_or_default()
    }
}

/// Where the partitions of a shuffle are, in one generation. Its size is proportional to the servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub shuffle: ShuffleId,
    /// Which assignment this is.
    pub generation: Generation,
    /// The one in which partitions were assigned when nothing was at a server yet. Who began with it finds no
    /// rows of before.
    pub opened: Generation,
    /// Said to who has found other rows ([`ToMaster::Differs`](crate::ToMaster::Differs)): what was committed
    /// stays.
    pub is_final: bool,
    pub tenant: Tenant,
    /// How many inputs there are.
    pub maps: u32,
    /// How many partitions there are, with those that nobody wants.
    pub partitions: u32,
    /// The groups, in ascending order of their ids. What is in none of them nobody wants: its rows are
    /// dropped where they are made, and counted nowhere.
    pub groups: Vec<Group>,
}

impl Plan {
    /// A group of the plan, by its name.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        let index = self.groups.binary_search_by_key(&id, |group| group.id);
        index.ok().map(|index| &self.groups[index])
    }

    /// The group that a copy is of.
    pub fn group_of_copy(&self, copy: GroupId) -> Option<&Group> {
        let first = self
            .groups
            .partition_point(|group| group.id.epoch < copy.epoch);
        let same = self.groups[first..].iter();
        let mut same = same.take_while(|group| group.id.epoch == copy.epoch);
        same.find(|group| group.copies.contains(&copy.server))
    }

    /// The group of an epoch, in a shuffle whose groups have epochs of their own.
    pub(crate) fn group_of_epoch(&self, epoch: Generation) -> Option<&Group> {
        let at = self.groups.partition_point(|group| group.id.epoch < epoch);
        let group = self.groups.get(at);
        group.filter(|group| group.id.epoch == epoch)
    }

    /// The first group of a partition, unless nobody wants it.
    pub fn group_of(&self, partition: u32) -> Option<&Group> {
        self.groups_of(partition).next()
    }

    /// All groups that have rows of a partition, by epoch.
    pub fn groups_of(&self, partition: u32) -> impl Iterator<Item = &Group> {
        let groups = self.groups.iter();
        groups.filter(move |group| group.partitions.contains(u64::from(partition)))
    }

    /// One group for each set of partitions, by its first partition.
    pub(crate) fn sections(&self) -> BTreeMap<u64, &Group> {
        let groups = self.groups.iter();
        groups.map(|group| (group.section(), group)).collect()
    }

    /// The partitions that somebody wants, each once.
    pub fn outputs(&self) -> impl Iterator<Item = &Runs> {
        self.sections().into_values().map(|group| &group.partitions)
    }

    /// All groups with the same partitions as this one, itself among them, by epoch. At most one of them
    /// is open.
    pub fn chain<'p>(&'p self, group: &'p Group) -> impl Iterator<Item = &'p Group> {
        let groups = self.groups.iter();
        groups.filter(|other| other.section() == group.section())
    }
}
