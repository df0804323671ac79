//! Which server holds which partition.

use alloc::vec::Vec;

use treadle_types::Runs;

use crate::{Generation, GroupId, ServerId, ShuffleId};

/// Some partitions of a shuffle at one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// Its partitions.
    pub partitions: Runs,
}

/// Where the partitions of a shuffle are, in one generation. Its size is proportional to the servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The shuffle.
    pub shuffle: ShuffleId,
    /// Which assignment this is.
    pub generation: Generation,
    /// How many inputs there are.
    pub maps: u32,
    /// How many partitions there are, with those that nobody wants.
    pub partitions: u32,
    /// The groups, in ascending order of their ids. What is in none of them nobody wants: its rows are
    /// dropped where they are made, and counted nowhere.
    pub groups: Vec<Group>,
}

impl Plan {
    /// A group of the plan.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        let index = self.groups.binary_search_by_key(&id, |group| group.id);
        index.ok().map(|index| &self.groups[index])
    }

    /// The group of a partition, unless nobody wants it.
    pub fn group_of(&self, partition: u32) -> Option<&Group> {
        let mut groups = self.groups.iter();
        groups.find(|group| group.partitions.contains(u64::from(partition)))
    }

    /// The groups of a server: one for each time at which it was assigned partitions.
    pub fn groups_at(&self, server: ServerId) -> impl Iterator<Item = &Group> {
        let groups = self.groups.iter();
        groups.filter(move |group| group.id.server == server)
    }
}
