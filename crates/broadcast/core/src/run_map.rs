//! Numbers by id, as runs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::{Previous, Runs};

/// A number for each of some ids; ids next to each other with the same number are one entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunMap(BTreeMap<u64, (u64, u64)>);

impl RunMap {
    /// The number of `id`; 0: none was set.
    pub(crate) fn get(&self, id: u64) -> u64 {
        match self.0.range(..=id).next_back() {
            Some((_, &(end, number))) if id < end => number,
            _ => 0,
        }
    }

    /// Sets the number of all `ids`. Takes time in proportion to their ranges and to the entries that
    /// it replaces, which it made once: amortised, to the ranges.
    pub(crate) fn set(&mut self, ids: &Runs, number: u64) {
        for &(start, end) in ids.ranges() {
            self.clear(start, end);
            self.0.insert(start, (end, number));
        }
    }

    fn clear(&mut self, start: u64, end: u64) {
        if let Some((&first, &(last, number))) = self.0.range(..start).next_back()
            && last > start
        {
            self.0.insert(first, (start, number));
            if last > end {
                self.0.insert(end, (last, number));
            }
        }
        while let Some((&first, &(last, number))) = self.0.range(start..end).next() {
            self.0.remove(&first);
            if last > end {
                self.0.insert(end, (last, number));
            }
        }
    }

    /// The numbers of `ids`, in their order: from an id up to another one.
    pub(crate) fn entries(&self, ids: &Runs) -> Vec<(u64, u64, u64)> {
        let mut entries = Vec::with_capacity(ids.ranges().len());
        let mut push = |start: u64, end: u64, number: u64| {
            if start < end {
                entries.push((start, end, number));
            }
        };
        for &(start, end) in ids.ranges() {
            let mut at = start;
            let before = self.0.range(..start).next_back();
            for (&first, &(last, number)) in before.into_iter().chain(self.0.range(start..end)) {
                let (first, last) = (first.max(at), last.min(end));
                if first < last {
                    push(at, first, 0);
                    push(first, last, number);
                    at = last;
                }
            }
            push(at, end, 0);
        }
        entries
    }

    /// The numbers of `ids`, in their order.
    pub(crate) fn project(&self, ids: &Runs) -> Previous {
        let mut previous = Previous::default();
        for (start, end, number) in self.entries(ids) {
            let count = (end - start) as u32;
            match previous.0.last_mut() {
                Some((last, same)) if *same == number => *last += count,
                _ => previous.0.push((count, number)),
            }
        }
        previous
    }

    /// Sets the numbers of `ids`, of which there are as many as `previous` counts, as far as they are
    /// in `wanted`.
    pub(crate) fn set_some(&mut self, ids: &Runs, previous: &Previous, wanted: &Runs) {
        let mut ranges = ids.ranges().iter().copied();
        let mut range = ranges.next();
        for &(count, number) in &previous.0 {
            let mut left = u64::from(count);
            while let Some((start, end)) = range
                && left > 0
            {
                let stop = end.min(start + left);
                left -= stop - start;
                self.set(&Runs::range(start, stop).intersection(wanted), number);
                range = match stop < end {
                    true => Some((stop, end)),
                    false => ranges.next(),
                };
            }
        }
    }
}

impl Previous {
    /// How many members it speaks of.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|&(count, _)| u64::from(count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RunMap;
    use crate::{Previous, Runs};

    fn expand(previous: &Previous) -> Vec<u64> {
        let numbers = previous.0.iter();
        numbers
            .flat_map(|&(count, number)| core::iter::repeat_n(number, count as usize))
            .collect()
    }

    proptest! {
        #[test]
        fn it_does_what_a_vector_does(
            sets in prop::collection::vec((prop::collection::btree_set(0..30_u64, 1..20), 0..4_u64), 0..8),
            asked in prop::collection::btree_set(0..30_u64, 0..30),
            wanted in prop::collection::btree_set(0..30_u64, 0..30),
        ) {
            let (mut map, mut model) = (RunMap::default(), [0; 30]);
            for (ids, number) in sets {
                ids.iter().for_each(|&id| model[id as usize] = number);
                map.set(&ids.into_iter().collect(), number);
            }
            for id in 0..30 {
                prop_assert_eq!(map.get(id), model[id as usize]);
            }
            let runs: Runs = asked.iter().copied().collect();
            let previous = map.project(&runs);
            prop_assert_eq!(previous.count(), runs.len());
            let expected: Vec<_> = asked.iter().map(|&id| model[id as usize]).collect();
            prop_assert_eq!(expand(&previous), expected);

            let mut other = RunMap::default();
            other.set_some(&runs, &previous, &wanted.iter().copied().collect());
            for id in 0..30 {
                let is_set = asked.contains(&id) && wanted.contains(&id);
                prop_assert_eq!(other.get(id), if is_set { model[id as usize] } else { 0 });
            }
        }
    }
}
