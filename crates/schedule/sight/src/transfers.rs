//! What went from which worker to which.

use alloc::collections::BTreeMap;

/// Pairs of workers that are told apart.
const MOST: usize = 1 << 16;

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pair {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds in which a value was under way: several at a time count once.
    pub(crate) time: u64,
    /// The sum of the nanoseconds from each request to its value.
    pub(crate) waiting: u64,
    pub(crate) failed: u64,
    /// The end of the latest.
    until: u64,
}

/// By the rows of the workers: from, to.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    pairs: BTreeMap<(u16, u16), Pair>,
    /// Of pairs that there was no room for.
    pub(crate) others: Pair,
}

impl Transfers {
    /// A value came, or did not, from a request to the end. Returns how much of that time no earlier one
    /// of the same pair was under way; they are told in the order in which they ended.
    pub(crate) fn add(
        &mut self,
        (from, to): (u16, u16),
        bytes: u64,
        (start, end): (u64, u64),
        failed: bool,
    ) -> u64 {
        let has_room = self.pairs.len() < MOST;
        let (pair, is_one) = match self.pairs.get_mut(&(from, to)) {
            Some(pair) => (pair, true),
            None if has_room => (self.pairs.entry((from, to)).or_default(), true),
            None => (&mut self.others, false),
        };
        let earlier = if is_one { pair.until } else { 0 };
        let time = end.saturating_sub(start.max(earlier));
        pair.count += 1;
        pair.bytes = pair.bytes.saturating_add(bytes);
        pair.time = pair.time.saturating_add(time);
        pair.waiting = pair.waiting.saturating_add(end.saturating_sub(start));
        pair.failed += u64::from(failed);
        pair.until = pair.until.max(end);
        time
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, u16, &Pair)> {
        self.pairs
            .iter()
            .map(|(&(from, to), pair)| (from, to, pair))
    }

    pub(crate) fn get(&self, from: u16, to: u16) -> Option<&Pair> {
        self.pairs.get(&(from, to))
    }

    pub(crate) fn check(&self) {
        assert!(self.pairs.len() <= MOST);
        for pair in self.pairs.values() {
            assert!(pair.time <= pair.waiting && pair.time <= pair.until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_at_a_time_count_once() {
        let mut transfers = Transfers::default();
        let times = [(0, 10), (2, 12), (3, 11), (20, 25)];
        let new = times.map(|times| transfers.add((1, 2), 5, times, false));
        assert_eq!(new, [10, 2, 0, 5]);
        assert_eq!(transfers.add((3, 2), 5, (0, 10), true), 10);
        let pair = transfers.get(1, 2).unwrap();
        assert_eq!((pair.time, pair.waiting, pair.count), (17, 33, 4));
        transfers.check();
    }
}
