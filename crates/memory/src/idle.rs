//! What is kept for reuse.

use std::collections::{BTreeMap, VecDeque};

/// Items by size class. The one that was used last is reused first, because the caches may still
/// know it; the one that was idle for longest is given up first.
pub(crate) struct Idle<T> {
    classes: BTreeMap<usize, VecDeque<(u64, T)>>,
    clock: u64,
    bytes: usize,
    len: usize,
}

impl<T> Default for Idle<T> {
    fn default() -> Self {
        Idle {
            classes: BTreeMap::new(),
            clock: 0,
            bytes: 0,
            len: 0,
        }
    }
}

impl<T> Idle<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn put(&mut self, class: usize, item: T) {
        self.clock += 1;
        self.bytes += class;
        self.len += 1;
        self.classes
            .entry(class)
            .or_default()
            .push_back((self.clock, item));
    }

    pub(crate) fn take(&mut self, class: usize) -> Option<T> {
        self.remove(class, VecDeque::pop_back)
    }

    /// Gives up what was idle for longest.
    pub(crate) fn evict(&mut self) -> Option<T> {
        let oldest = |items: &VecDeque<(u64, T)>| items.front().map(|(time, _)| *time);
        let (&class, _) = self.classes.iter().min_by_key(|(_, items)| oldest(items))?;
        self.remove(class, VecDeque::pop_front)
    }

    /// Gives up as much as is needed to keep at most `limit` bytes.
    pub(crate) fn shrink(&mut self, limit: usize) -> Vec<T> {
        let mut evicted = Vec::new();
        while self.bytes > limit {
            evicted.extend(self.evict());
        }
        evicted
    }

    fn remove(
        &mut self,
        class: usize,
        pop: impl FnOnce(&mut VecDeque<(u64, T)>) -> Option<(u64, T)>,
    ) -> Option<T> {
        let items = self.classes.get_mut(&class)?;
        let (_, item) = pop(items)?;
        if items.is_empty() {
            self.classes.remove(&class);
        }
        self.bytes -= class;
        self.len -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warmest_is_reused_and_the_coldest_given_up() {
        let mut idle = Idle::default();
        for (class, item) in [(10, 'a'), (20, 'b'), (10, 'c'), (20, 'd')] {
            idle.put(class, item);
        }
        assert_eq!(idle.bytes(), 60);
        assert_eq!(idle.take(10), Some('c'));
        assert_eq!(idle.take(11), None);
        idle.put(10, 'c');
        assert_eq!(idle.shrink(30), ['a', 'b']);
        assert_eq!(idle.take(20), Some('d'));
        assert_eq!(idle.take(20), None);
        assert_eq!(idle.shrink(0), ['c']);
        assert_eq!((idle.bytes(), idle.evict()), (0, None));
    }
}
