//! Sets of integers as runs.

use alloc::vec;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// A set of integers (ids of workers, numbers of casts, partitions) as sorted ranges with gaps between them. All
/// ids of a cluster, or all numbers so far, are one range.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Runs(SmallVec<[(u64, u64); 1]>);

impl Runs {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// From `start` up to `end`, `end` not included.
    pub fn range(start: u64, end: u64) -> Self {
        let mut runs = Self::new();
        if start < end {
            runs.0.push((start, end));
        }
        runs
    }

    /// One integer.
    pub fn one(n: u64) -> Self {
        Self::range(n, n + 1)
    }

    /// From ranges as [`Runs::ranges`] gives them; `None` if they are not: empty, out of order, or
    /// without a gap.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u64, u64)>) -> Option<Self> {
        let mut runs = Self::new();
        for (start, end) in ranges {
            let follows = runs.0.last().is_none_or(|&(_, last)| last < start);
            if start >= end || !follows {
                return None;
            }
            runs.0.push((start, end));
        }
        Some(runs)
    }

    /// The ranges in order, each with its first integer and the one after its last.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }
}

impl Runs {
    /// As numbers for the wire: for each run how far it begins after the one before, and how long it
    /// is.
    pub fn gaps(&self) -> impl Iterator<Item = u64> + '_ {
        let mut last = 0;
        self.ranges().iter().flat_map(move |&(start, end)| {
            let gap = start - core::mem::replace(&mut last, end);
            [gap, end - start]
        })
    }

    /// The inverse of [`Runs::gaps`].
    ///
    /// # Errors
    /// A number that is wrong, of numbers that are none of those.
    pub fn from_gaps(numbers: &[u64]) -> Result<Self, u64> {
        let (pairs, rest) = numbers.as_chunks::<2>();
        if let [single] = rest {
            return Err(*single);
        }
        let mut last = 0_u64;
        let mut ranges = Vec::with_capacity(pairs.len());
        for &[gap, length] in pairs {
            let start = last.checked_add(gap).ok_or(gap)?;
            let end = start.checked_add(length).ok_or(length)?;
            ranges.push((start, end));
            last = end;
        }
        Self::from_ranges(ranges).ok_or(0)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many integers there are.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The smallest.
    pub fn first(&self) -> Option<u64> {
        self.0.first().map(|&(start, _)| start)
    }

    /// Whether `n` is one of them.
    pub fn contains(&self, n: u64) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= n);
        after > 0 && n < self.0[after - 1].1
    }

    /// The integers in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(start, end)| start..end)
    }

    /// Adds an integer; one above all others takes no search.
    pub fn insert(&mut self, n: u64) {
        match self.0.last_mut() {
            Some((_, end)) if *end == n => *end += 1,
            Some(&mut (_, end)) if end > n => {
                if !self.contains(n) {
                    *self = self.union(&Self::one(n));
                }
            }
            _ => self.0.push((n, n + 1)),
        }
    }

    /// Removes an integer.
    pub fn remove(&mut self, n: u64) {
        if self.contains(n) {
            *self = self.difference(&Self::one(n));
        }
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if self.is_empty() {
            return other.clone();
        }
        if other.is_empty() {
            return self.clone();
        }
        let mut union = Self::new();
        let (mut left, mut right) = (&self.0[..], &other.0[..]);
        loop {
            let next = match (left, right) {
                ([], []) => return union,
                ([l, ..], [r, ..]) if l.0 <= r.0 => &mut left,
                (_, [_, ..]) => &mut right,
                (_, []) => &mut left,
            };
            let (start, end) = next[0];
            *next = &next[1..];
            match union.0.last_mut() {
                Some((_, last)) if *last >= start => *last = (*last).max(end),
                _ => union.0.push((start, end)),
            }
        }
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::new();
        let (mut left, mut right) = (&self.0[..], &other.0[..]);
        while let ([l, ..], [r, ..]) = (left, right) {
            let (start, end) = (l.0.max(r.0), l.1.min(r.1));
            if start < end {
                both.0.push((start, end));
            }
            match l.1 <= r.1 {
                true => left = &left[1..],
                false => right = &right[1..],
            }
        }
        both
    }

    /// What is here and not there.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = Self::new();
        let mut holes = &other.0[..];
        for &(mut start, end) in &self.0 {
            while let [hole, others @ ..] = holes {
                if hole.1 <= start {
                    holes = others;
                    continue;
                }
                if hole.0 >= end {
                    break;
                }
                if hole.0 > start {
                    rest.0.push((start, hole.0));
                }
                start = hole.1;
                if start >= end {
                    break;
                }
                holes = others;
            }
            if start < end {
                rest.0.push((start, end));
            }
        }
        rest
    }

    /// In parts of at most `most` integers each.
    #[must_use]
    pub fn parts(&self, most: u64) -> Vec<Self> {
        if self.len() <= most {
            return vec![self.clone()];
        }
        let all: Vec<u64> = self.iter().collect();
        let parts = all.chunks(most as usize);
        parts.map(|part| part.iter().copied().collect()).collect()
    }

    /// Whether nothing is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let (mut left, mut right) = (&self.0[..], &other.0[..]);
        while let ([l, ..], [r, ..]) = (left, right) {
            if l.0.max(r.0) < l.1.min(r.1) {
                return false;
            }
            match l.1 <= r.1 {
                true => left = &left[1..],
                false => right = &right[1..],
            }
        }
        true
    }

    /// Whether all of this is there.
    pub fn is_subset(&self, other: &Self) -> bool {
        let within = |&(start, end): &(u64, u64)| {
            let after = other.0.partition_point(|&(first, _)| first <= start);
            after > 0 && end <= other.0[after - 1].1
        };
        self.0.iter().all(within)
    }
}

impl FromIterator<u64> for Runs {
    /// From integers in any order.
    fn from_iter<T: IntoIterator<Item = u64>>(integers: T) -> Self {
        let mut sorted: Vec<u64> = integers.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut runs = Self::new();
        for n in sorted {
            runs.insert(n);
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::Runs;

    fn set(runs: &Runs) -> BTreeSet<u64> {
        assert_eq!(
            Runs::from_ranges(runs.ranges().to_vec()).as_ref(),
            Some(runs)
        );
        runs.iter().collect()
    }

    proptest! {
        #[test]
        fn they_do_what_sets_do(
            one in prop::collection::btree_set(0..40_u64, 0..30),
            other in prop::collection::btree_set(0..40_u64, 0..30),
            n in 0..40_u64,
        ) {
            let [left, right] = [&one, &other].map(|set| set.iter().copied().collect::<Runs>());
            prop_assert_eq!(&set(&left), &one);
            prop_assert_eq!(left.len(), one.len() as u64);
            prop_assert_eq!(set(&left.union(&right)), &one | &other);
            prop_assert_eq!(set(&left.intersection(&right)), &one & &other);
            prop_assert_eq!(set(&left.difference(&right)), &one - &other);
            prop_assert_eq!(left.is_disjoint(&right), one.is_disjoint(&other));
            prop_assert_eq!(left.is_subset(&right), one.is_subset(&other));
            prop_assert_eq!(left.contains(n), one.contains(&n));
            prop_assert_eq!(left.first(), one.first().copied());
            let (mut with, mut without) = (left.clone(), left);
            with.insert(n);
            without.remove(n);
            prop_assert_eq!(set(&with), &one | &BTreeSet::from([n]));
            prop_assert_eq!(set(&without), &one - &BTreeSet::from([n]));
        }
    }

    #[test]
    fn what_is_not_sorted_with_gaps_is_refused() {
        for ranges in [
            vec![(1, 1)],
            vec![(2, 1)],
            vec![(1, 3), (3, 4)],
            vec![(5, 6), (1, 2)],
        ] {
            assert_eq!(Runs::from_ranges(ranges), None);
        }
    }
}
