//! How much each server has of all shuffles. What an event of one shuffle needs to know of the others is kept: with
//! many of them it would take long to count it each time.

use alloc::collections::BTreeMap;
use core::mem;

use crate::master::{Master, Shuffle};
use crate::{Broken, ServerId, ShuffleId};

/// Bytes that each server is expected to have of all groups that it has copies of.
#[derive(Debug, Default)]
pub(super) struct Loads {
    all: BTreeMap<ServerId, u128>,
    /// Groups that were looked at for this.
    counted: u64,
}

impl Loads {
    pub(super) fn of(&self, server: ServerId) -> u64 {
        let load = self.all.get(&server).copied().unwrap_or(0);
        u64::try_from(load).unwrap_or(u64::MAX)
    }

    fn remove(&mut self, loads: &BTreeMap<ServerId, u128>) {
        for (server, load) in loads {
            if let Some(all) = self.all.get_mut(server) {
                *all -= load;
                if *all == 0 {
                    self.all.remove(server);
                }
            }
        }
    }

    fn add(&mut self, loads: &BTreeMap<ServerId, u128>) {
        for (&server, load) in loads {
            *self.all.entry(server).or_default() += load;
        }
    }
}

impl Shuffle {
    fn loads(&self) -> BTreeMap<ServerId, u128> {
        let mut loads = BTreeMap::new();
        for group in self.groups.values().filter(|group| group.load > 0) {
            for holder in group.holders() {
                *loads.entry(holder).or_default() += u128::from(group.load);
            }
        }
        loads
    }
}

impl Master {
    /// Groups that were looked at to know how much servers have, since the beginning.
    pub fn counted(&self) -> u64 {
        self.loads.counted
    }

    /// Groups of a shuffle may have changed.
    pub(super) fn count_loads(&mut self, id: ShuffleId) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        self.loads.counted += shuffle.groups.len() as u64;
        let now = shuffle.loads();
        self.loads.add(&now);
        let before = mem::replace(&mut shuffle.counted, now);
        self.loads.remove(&before);
    }

    /// A shuffle has ended.
    pub(super) fn forget_loads(&mut self, shuffle: &Shuffle) {
        self.loads.remove(&shuffle.counted);
    }

    pub(super) fn check_loads(&self) -> Result<(), Broken> {
        let mut found = Loads::default();
        for shuffle in self.shuffles.values() {
            found.add(&shuffle.loads());
        }
        let sum = |loads: &Loads| loads.all.values().sum::<u128>() as u64;
        match found.all == self.loads.all {
            true => Ok(()),
            false => Err(Broken::Sum {
                what: "bytes that servers are expected to have",
                counted: sum(&self.loads),
                found: sum(&found),
            }),
        }
    }
}
