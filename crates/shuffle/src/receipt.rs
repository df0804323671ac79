//! What a transfer leaves as its result, and what a barrier makes of the results of all.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::{AttemptId, GroupId, ShuffleId, Tally, Transfer};

/// What one transfer has at one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The group.
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
    /// Whose.
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

/// What the winning attempts have at one group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// The attempt that counts for each map that has rows here, by map.
    pub winners: Vec<(u32, AttemptId)>,
    /// What they have together.
    pub tally: Tally,
}

/// What a barrier asks the master to commit: the results of all transfers, added up by group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The shuffle.
    pub shuffle: ShuffleId,
    /// By group. A group that is not here has no rows.
    pub groups: BTreeMap<GroupId, Expected>,
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
        /// The shuffle.
        shuffle: ShuffleId,
        /// The map.
        map: u32,
        /// How many there are.
        maps: u32,
    },
    /// A receipt whose groups are not in order.
    #[error("the receipt of input {map} of shuffle {shuffle:?} is malformed")]
    Malformed {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The map.
        map: u32,
    },
    /// A map without a receipt.
    #[error("input {map} of shuffle {shuffle:?} has no receipt: its transfer did not run")]
    Missing {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The first such map.
        map: u32,
    },
    /// A map with two receipts.
    #[error("input {map} of shuffle {shuffle:?} has two receipts")]
    Twice {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The map.
        map: u32,
    },
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
        let mut by_map = BTreeMap::new();
        for receipt in receipts {
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
            if by_map.insert(map, receipt).is_some() {
                return Err(ReceiptError::Twice { shuffle, map });
            }
        }
        let mut groups = BTreeMap::<GroupId, Expected>::new();
        for map in 0..maps {
            let Some(receipt) = by_map.get(&map) else {
                return Err(ReceiptError::Missing { shuffle, map });
            };
            for share in &receipt.shares {
                let expected = groups.entry(share.group).or_default();
                expected.winners.push((map, share.holder));
                expected.tally.add(&share.tally);
            }
        }
        Ok(Self { shuffle, groups })
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
        let groups: Vec<_> = commit.groups.values().collect();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].winners, [(1, AttemptId(101))]);
        assert_eq!(
            groups[1].winners,
            [(0, AttemptId(100)), (1, AttemptId(101))]
        );
        assert_eq!(groups[1].tally.rows, 2);
        assert_eq!(receipts[0].tally().bytes, 16);
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
