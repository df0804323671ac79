//! Tasks that may start, the most urgent first.

use alloc::vec;
use alloc::vec::Vec;

use treadle_guards::{InvariantError, ensure_eq};

/// A set of ranks (small integers, each at most once) that gives back the smallest.
///
/// It is a bitmap with summaries: bit `r` of level 0 says that rank `r` is in the set, bit `w` of
/// the next level says that word `w` of the level below is not empty. Insertion and removal touch
/// one word a level, and 2³² ranks need six levels: constant time, and 1.02 bits a rank. A stack
/// would be as fast, but would follow the planned order only as long as nothing finishes late; a
/// binary heap follows it, at a logarithmic price.
#[derive(Clone, Debug)]
pub struct ReadySet {
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl ReadySet {
    /// An empty set with room for the ranks below `ranks`.
    pub fn with_capacity(ranks: usize) -> Self {
        let mut set = ReadySet {
            levels: Vec::new(),
            len: 0,
        };
        set.grow(ranks);
        set
    }

    /// Makes room for the ranks below `ranks`; what is in the set stays.
    pub fn grow(&mut self, ranks: usize) {
        let mut words = ranks.max(1).div_ceil(64);
        let mut level = 0;
        loop {
            if self.levels.len() == level {
                // A new summary on top summarises what the level below holds already.
                let mut summary = vec![0; words];
                if level > 0 {
                    for (word, &bits) in self.levels[level - 1].iter().enumerate() {
                        summary[word / 64] |= u64::from(bits != 0) << (word % 64);
                    }
                }
                self.levels.push(summary);
            } else if self.levels[level].len() < words {
                self.levels[level].resize(words, 0);
            }
            if words == 1 && self.levels.len() == level + 1 {
                break;
            }
            words = words.div_ceil(64);
            level += 1;
        }
    }

    /// Number of ranks in the set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `rank` is in the set.
    pub fn contains(&self, rank: u32) -> bool {
        let words = &self.levels[0];
        words
            .get(rank as usize / 64)
            .is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// Puts `rank` into the set.
    ///
    /// # Panics
    /// When there is no room for it (see [`ReadySet::grow`]).
    #[inline]
    pub fn insert(&mut self, rank: u32) {
        debug_assert!(!self.contains(rank), "rank {rank} is in the set already");
        let mut index = rank as usize;
        for level in &mut self.levels {
            let word = &mut level[index / 64];
            let was_empty = *word == 0;
            *word |= 1 << (index % 64);
            if !was_empty {
                break;
            }
            index /= 64;
        }
        self.len += 1;
    }

    /// Takes the smallest rank out of the set.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let index = self.levels.iter().rev().fold(0, |index, level| {
            index * 64 + level[index].trailing_zeros() as usize
        });
        self.remove(index);
        Some(index as u32)
    }

    fn remove(&mut self, mut index: usize) {
        for level in &mut self.levels {
            let word = &mut level[index / 64];
            *word &= !(1 << (index % 64));
            if *word != 0 {
                break;
            }
            index /= 64;
        }
        self.len -= 1;
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        for level in &mut self.levels {
            level.fill(0);
        }
        self.len = 0;
    }

    /// Verifies that every summary agrees with the level below it.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        let count: u32 = self
            .levels
            .first()
            .map_or(0, |l| l.iter().map(|w| w.count_ones()).sum());
        ensure_eq!(count as usize, self.len, "the length is the number of bits");
        for pair in self.levels.windows(2) {
            for (word, &bits) in pair[0].iter().enumerate() {
                let summary = pair[1][word / 64] >> (word % 64) & 1 == 1;
                ensure_eq!(summary, bits != 0, "the summary of word {word} is wrong");
            }
        }
        if let Some(top) = self.levels.last() {
            ensure_eq!(top.len(), 1, "the top level is one word");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pops_in_order_like_a_sorted_set(
            steps in prop::collection::vec((prop::bool::weighted(0.6), 0u32..300_000), 1..200),
        ) {
            let mut set = ReadySet::with_capacity(10);
            let mut model = BTreeSet::new();
            for (insert, rank) in steps {
                if insert {
                    set.grow(rank as usize + 1);
                    if model.insert(rank) {
                        set.insert(rank);
                    }
                } else {
                    prop_assert_eq!(set.pop(), model.pop_first());
                }
                set.check().unwrap();
                prop_assert_eq!(set.len(), model.len());
                prop_assert!(model.iter().all(|&rank| set.contains(rank)));
            }
        }
    }
}
