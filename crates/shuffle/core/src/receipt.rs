//! What a transfer leaves as its result, and what a barrier makes of the results of all.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::{AttemptId, GroupId, MapSet, ShuffleId, Tally, Transfer};

/// What one transfer has at one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    pub group: GroupId,
    /// The attempt whose batches are there. An earlier one, if that had pushed the same rows already.
    pub holder: AttemptId,
    /// What they count.
    pub tally: Tally,
}

/// The result of a transfer: what it has at each group for which it has rows. Proportional to the
/// number of servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub transfer: Transfer,
    /// Its shares, in ascending order of the groups.
    pub shares: Vec<Share>,
}

impl Receipt {
    /// What the transfer has at all groups.
    pub fn tally(&self) -> Tally {
        self.shares.iter().map(|share| share.tally).sum()
    }
}

/// The attempts that count, for some maps: positions in a list that others may share.
#[derive(Clone, Default)]
pub struct Winners {
    /// In ascending order of maps and attempts. A map may be there with several attempts, of which one at
    /// most is chosen.
    list: Arc<Vec<(u32, AttemptId)>>,
    chosen: MapSet,
}

impl Winners {
    /// Those of a list that are chosen by their positions.
    pub fn new(list: Arc<Vec<(u32, AttemptId)>>, chosen: MapSet) -> Self {
        Self { list, chosen }
    }

    /// Maps with the attempts that count, in ascending order of the maps.
    pub fn iter(&self) -> impl Iterator<Item = (u32, AttemptId)> + '_ {
        let list = &self.list;
        self.chosen
            .iter()
            .filter_map(|at| list.get(at as usize).copied())
    }

    /// The attempt of a map that counts.
    pub fn get(&self, map: u32) -> Option<AttemptId> {
        let first = self.list.partition_point(|&(other, _)| other < map);
        let of_map = self.list[first..].iter().zip(first..);
        let mut of_map = of_map.take_while(|((other, _), _)| *other == map);
        let found = of_map.find(|(_, at)| self.chosen.contains(*at as u32));
        found.map(|((_, attempt), _)| *attempt)
    }

    /// How many maps there are.
    pub fn len(&self) -> u64 {
        self.chosen.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Adds a map that is above all others.
    pub fn push(&mut self, map: u32, attempt: AttemptId) {
        let list = Arc::make_mut(&mut self.list);
        self.chosen.insert(list.len() as u32);
        list.push((map, attempt));
    }
}

impl FromIterator<(u32, AttemptId)> for Winners {
    /// From maps in ascending order.
    fn from_iter<T: IntoIterator<Item = (u32, AttemptId)>>(winners: T) -> Self {
        let list: Vec<_> = winners.into_iter().collect();
        let chosen = MapSet::below(list.len() as u32);
        Self::new(Arc::new(list), chosen)
    }
}

impl PartialEq for Winners {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Winners {}

impl fmt::Debug for Winners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// What the winning attempts have at one group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// The attempt that counts for each map that has rows here.
    pub winners: Winners,
    /// What they have together.
    pub tally: Tally,
}

impl Expected {
    /// A number that two that differ hardly ever have both.
    pub fn mark(&self) -> u64 {
        let Tally {
            rows,
            bytes,
            digest,
        } = self.tally;
        let winners = self.winners.iter();
        let winners = winners.map(|(map, attempt)| mix(mix(u64::from(map)) ^ attempt.0));
        let start = mix(mix(mix(rows) ^ bytes) ^ digest);
        winners.fold(start, u64::wrapping_add)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// What a barrier asks the master to commit: the results of all transfers, added up by group.
///
/// Which attempts count is said once for all groups. With `m` maps and `g` groups that takes `16 m` bytes
/// and at most `m g / 8` more; if all maps have rows in all groups, `16 m`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    pub shuffle: ShuffleId,
    /// The attempts that count somewhere, in ascending order of maps and attempts. A map has several, if
    /// one that ran again found rows of an earlier attempt at some groups.
    pub winners: Arc<Vec<(u32, AttemptId)>>,
    /// By group. A group that is not here has no rows.
    pub groups: BTreeMap<GroupId, Chosen>,
    /// What was committed before stays, as long as none of it is lost, whatever these receipts say. Otherwise
    /// receipts of other rows have all begin anew, as where maps ran again since somebody needed them.
    pub keeps: bool,
}

/// What counts at one group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chosen {
    /// Positions in [`Commit::winners`], of one attempt for each map.
    pub positions: MapSet,
    /// What they have together.
    pub tally: Tally,
}

/// Receipts that do not make a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReceiptError {
    /// A receipt of another shuffle.
    #[error("the barrier of shuffle {expected:?} got a receipt of shuffle {found:?}")]
    Shuffle {
        /// The barrier's.
        expected: ShuffleId,
        /// The receipt's.
        found: ShuffleId,
    },
    /// A map that the shuffle does not have.
    #[error("shuffle {shuffle:?} has {maps} inputs, and a receipt is of input {map}")]
    Map {
        shuffle: ShuffleId,
        map: u32,
        /// How many there are.
        maps: u32,
    },
    /// A receipt whose groups are not in order.
    #[error("the receipt of input {map} of shuffle {shuffle:?} is malformed")]
    Malformed { shuffle: ShuffleId, map: u32 },
    /// A map without a receipt.
    #[error("input {map} of shuffle {shuffle:?} has no receipt: its transfer did not run")]
    Missing {
        shuffle: ShuffleId,
        /// The first such map.
        map: u32,
    },
    /// A map with two receipts.
    #[error("input {map} of shuffle {shuffle:?} has two receipts")]
    Twice { shuffle: ShuffleId, map: u32 },
}

/// Receipts that are added up one after another: what is kept of them is no more than their commit.
#[derive(Clone, Debug)]
pub struct Receipts {
    shuffle: ShuffleId,
    maps: u32,
    /// The attempts that each map has somewhere, in order.
    holders: BTreeMap<u32, Vec<AttemptId>>,
    /// In ascending order.
    groups: Vec<(GroupId, Sum)>,
}

/// What was added up for a group.
#[derive(Clone, Debug, Default)]
struct Sum {
    /// By position among the holders of a map: the maps of which that one has the rows.
    maps: Vec<MapSet>,
    tally: Tally,
}

impl Receipts {
    /// Of a shuffle with so many maps.
    pub fn new(shuffle: ShuffleId, maps: u32) -> Self {
        Self {
            shuffle,
            maps,
            holders: BTreeMap::new(),
            groups: Vec::new(),
        }
    }

    /// Adds the receipt of a transfer, which the host engine has chosen. They may come in any order.
    ///
    /// # Errors
    /// [`ReceiptError`]: it does not belong here. Nothing has changed.
    pub fn add(&mut self, receipt: &Receipt) -> Result<(), ReceiptError> {
        let (shuffle, maps) = (self.shuffle, self.maps);
        let found = receipt.transfer.shuffle;
        let map = receipt.transfer.map;
        if found != shuffle {
            let expected = shuffle;
            return Err(ReceiptError::Shuffle { expected, found });
        }
        if map >= maps {
            return Err(ReceiptError::Map { shuffle, map, maps });
        }
        if !receipt.shares.is_sorted_by(|a, b| a.group < b.group) {
            return Err(ReceiptError::Malformed { shuffle, map });
        }
        if self.holders.contains_key(&map) {
            return Err(ReceiptError::Twice { shuffle, map });
        }
        let holders = receipt.shares.iter().map(|share| share.holder);
        let mut holders: Vec<AttemptId> = holders.collect();
        holders.sort_unstable();
        holders.dedup();
        holders.shrink_to_fit();
        let mut at = 0;
        for share in &receipt.shares {
            // Both are in order.
            while self
                .groups
                .get(at)
                .is_some_and(|(group, _)| *group < share.group)
            {
                at += 1;
            }
            if self
                .groups
                .get(at)
                .is_none_or(|(group, _)| *group != share.group)
            {
                self.groups.insert(at, (share.group, Sum::default()));
            }
            let sum = &mut self.groups[at].1;
            sum.tally.add(&share.tally);
            let holder = holders.partition_point(|other| *other < share.holder);
            if sum.maps.len() <= holder {
                sum.maps.resize(holder + 1, MapSet::new());
            }
            sum.maps[holder].insert(map);
        }
        self.holders.insert(map, holders);
        Ok(())
    }

    /// Their sum.
    ///
    /// # Errors
    /// [`ReceiptError::Missing`]: some maps have no receipt.
    pub fn commit(self) -> Result<Commit, ReceiptError> {
        let shuffle = self.shuffle;
        let mut winners = Vec::new();
        // Where the attempts of each map begin.
        let mut begins = Vec::new();
        for map in 0..self.maps {
            let Some(holders) = self.holders.get(&map) else {
                return Err(ReceiptError::Missing { shuffle, map });
            };
            begins.push(winners.len() as u32);
            winners.extend(holders.iter().map(|&holder| (map, holder)));
        }
        let is_plain = (0..)
            .zip(&begins)
            .all(|(map, &begin): (u32, _)| map == begin);
        let groups = self.groups.into_iter().map(|(group, mut sum)| {
            let mut positions = match is_plain && sum.maps.len() == 1 {
                true => sum.maps.remove(0),
                false => {
                    let holders = (0_u32..).zip(&sum.maps);
                    let positions = holders
                        .flat_map(|(holder, maps)| maps.iter().map(move |map| (map, holder)));
                    let positions = positions.map(|(map, holder)| begins[map as usize] + holder);
                    positions.collect()
                }
            };
            positions.shrink();
            let tally = sum.tally;
            (group, Chosen { positions, tally })
        });
        Ok(Commit {
            shuffle,
            groups: groups.collect(),
            winners: Arc::new(winners),
            keeps: false,
        })
    }
}

impl Commit {
    /// Adds up the receipts of all transfers, which the host engine has chosen. They may come in any
    /// order.
    ///
    /// # Errors
    /// [`ReceiptError`]: they are not one for each map.
    pub fn new<'r>(
        shuffle: ShuffleId,
        maps: u32,
        receipts: impl IntoIterator<Item = &'r Receipt>,
    ) -> Result<Self, ReceiptError> {
        let mut sum = Receipts::new(shuffle, maps);
        for receipt in receipts {
            sum.add(receipt)?;
        }
        sum.commit()
    }

    /// What a group is to have. Takes its part out, and leaves nothing for the group.
    pub fn take(&mut self, group: GroupId) -> Expected {
        let chosen = self.groups.remove(&group).unwrap_or_default();
        Expected {
            winners: Winners::new(self.winners.clone(), chosen.positions),
            tally: chosen.tally,
        }
    }

    /// The maps that have rows in a group.
    pub fn maps_of(&self, group: GroupId) -> impl Iterator<Item = u32> + '_ {
        let chosen = self.groups.get(&group).into_iter();
        let positions = chosen.flat_map(|chosen| chosen.positions.iter());
        let winners = positions.filter_map(|at| self.winners.get(at as usize));
        winners.map(|&(map, _)| map)
    }

    /// Bytes that it takes beside itself.
    pub fn footprint(&self) -> u64 {
        let entry = size_of::<(GroupId, Chosen)>() as u64;
        let groups = self.groups.values();
        let groups = groups.map(|chosen| entry + chosen.positions.footprint());
        size_of_val(&self.winners[..]) as u64 + groups.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Generation, ServerId};

    const S: ShuffleId = ShuffleId(1);

    fn receipt(map: u32, servers: &[u32]) -> Receipt {
        let attempt = AttemptId(100 + u64::from(map));
        let shares = servers.iter().map(|&node| Share {
            group: GroupId {
                epoch: Generation(1),
                server: ServerId {
                    node,
                    incarnation: 1,
                },
            },
            holder: attempt,
            tally: Tally {
                rows: 1,
                bytes: 8,
                digest: 5,
            },
        });
        Receipt {
            transfer: Transfer {
                shuffle: S,
                map,
                attempt,
            },
            shares: shares.collect(),
        }
    }

    #[test]
    fn receipts_add_up_by_group_in_the_order_of_the_maps() {
        let receipts = [receipt(1, &[0, 1]), receipt(2, &[]), receipt(0, &[1])];
        let commit = Commit::new(S, 3, &receipts).unwrap();
        assert_eq!(commit.winners.len(), 2, "map 2 has no rows");
        let mut commit = commit;
        let groups: Vec<GroupId> = commit.groups.keys().copied().collect();
        assert_eq!(groups.len(), 2);
        assert!(commit.maps_of(groups[1]).eq([0, 1]));
        let [first, second] = [groups[0], groups[1]].map(|group| commit.take(group));
        assert!(first.winners.iter().eq([(1, AttemptId(101))]));
        let both = [(0, AttemptId(100)), (1, AttemptId(101))];
        assert!(second.winners.iter().eq(both));
        assert_eq!(second.winners.get(1), Some(AttemptId(101)));
        assert_eq!(first.winners.get(0), None);
        assert_eq!(second.tally.rows, 2);
        assert_eq!(commit.take(groups[1]), Expected::default());
        assert_eq!(receipts[0].tally().bytes, 16);
    }

    /// The receipts of so many maps that have rows in so many groups. Each third map ran again, and found
    /// the rows of its first attempt in every other group.
    fn many(maps: u32, groups: u32) -> Commit {
        let mut receipts = Receipts::new(S, maps);
        let nodes: Vec<u32> = (0..groups).collect();
        // In an order that is not that of the maps.
        for map in (0..maps).map(|n| (n * 7_919) % maps) {
            let mut receipt = receipt(map, &nodes);
            for share in receipt.shares.iter_mut().step_by(2) {
                if map.is_multiple_of(3) {
                    share.holder = AttemptId(7);
                }
            }
            receipts.add(&receipt).unwrap();
        }
        receipts.commit().unwrap()
    }

    #[test]
    fn a_map_may_count_with_several_attempts_but_one_in_each_group() {
        let mut commit = many(7, 4);
        assert_eq!(commit.winners.len(), 7 + 3);
        for (at, group) in commit.groups.clone().into_keys().enumerate() {
            let expected = commit.take(group);
            let first = |map: u32| map.is_multiple_of(3) && at.is_multiple_of(2);
            let own = |map: u32| AttemptId(100 + u64::from(map));
            let attempts =
                (0..7).map(|map| (map, if first(map) { AttemptId(7) } else { own(map) }));
            let attempts: Vec<_> = attempts.collect();
            assert!(expected.winners.iter().eq(attempts.iter().copied()));
            for (map, attempt) in attempts {
                assert_eq!(expected.winners.get(map), Some(attempt));
            }
            assert_eq!(expected.winners, expected.winners.iter().collect());
            assert_eq!(expected.tally.rows, 7);
        }
    }

    #[test]
    fn a_commit_takes_a_few_bytes_a_map_and_at_most_a_few_bits_a_map_and_group() {
        let (maps, groups) = (2_003, 100);
        // Both attempts of each third map.
        let list = 16 * u64::from(maps + maps / 3 + 1);
        let bits = u64::from(groups) * (list / 16 / 8 + 300);
        let footprint = many(maps, groups).footprint();
        assert!(footprint < list + bits, "{footprint}");
        // All have rows everywhere, and ran once: no more for more groups than these themselves.
        let plain = |groups: u32| {
            let nodes: Vec<u32> = (0..groups).collect();
            let mut receipts = Receipts::new(S, maps);
            for map in (0..maps).rev() {
                receipts.add(&receipt(map, &nodes)).unwrap();
            }
            receipts.commit().unwrap().footprint()
        };
        assert!(plain(100) < 16 * u64::from(maps) + 100 * 200);
    }

    #[test]
    fn one_receipt_for_each_map_and_no_other() {
        let of = |receipts: &[Receipt]| Commit::new(S, 2, receipts);
        let [first, second] = [receipt(0, &[0]), receipt(1, &[0])];
        let missing = of(core::slice::from_ref(&second));
        assert_eq!(missing, Err(ReceiptError::Missing { shuffle: S, map: 0 }));
        let twice = of(&[first.clone(), first.clone()]);
        assert_eq!(twice, Err(ReceiptError::Twice { shuffle: S, map: 0 }));
        let beyond = of(&[receipt(2, &[])]);
        assert!(matches!(beyond, Err(ReceiptError::Map { map: 2, .. })));
        let mut other = second;
        other.transfer.shuffle = ShuffleId(2);
        assert!(matches!(of(&[other]), Err(ReceiptError::Shuffle { .. })));
        let unordered = of(&[receipt(0, &[1, 0])]);
        assert!(matches!(unordered, Err(ReceiptError::Malformed { .. })));
    }
}
