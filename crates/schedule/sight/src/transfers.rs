//! What went from which worker to which.

use alloc::collections::BTreeMap;

/// Pairs of workers that are told apart.
const MOST: usize = 1 << 16;

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pair {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds from the request to the value.
    pub(crate) time: u64,
    pub(crate) failed: u64,
}

/// By the rows of the workers: from, to.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    pairs: BTreeMap<(u16, u16), Pair>,
    /// Of pairs that there was no room for.
    pub(crate) others: Pair,
}

impl Transfers {
    pub(crate) fn add(&mut self, from: u16, to: u16, bytes: u64, time: u64, failed: bool) {
        let has_room = self.pairs.len() < MOST;
        let pair = match self.pairs.get_mut(&(from, to)) {
            Some(pair) => pair,
            None if has_room => self.pairs.entry((from, to)).or_default(),
            None => &mut self.others,
        };
        pair.count += 1;
        pair.bytes = pair.bytes.saturating_add(bytes);
        pair.time = pair.time.saturating_add(time);
        pair.failed += u64::from(failed);
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
    }
}
