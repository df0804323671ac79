//! What is kept for reuse.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// An item, the bytes that it takes, and since when it is idle.
struct Kept<T> {
    since: Instant,
    bytes: usize,
    item: T,
}

/// Items by size class. The one that was used last is reused first, because the caches may still
/// know it; the one that was idle for longest is given up first.
pub(crate) struct Idle<T> {
    classes: BTreeMap<usize, VecDeque<Kept<T>>>,
    bytes: usize,
    len: usize,
}

impl<T> Default for Idle<T> {
    fn default() -> Self {
        Idle {
            classes: BTreeMap::new(),
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

    /// Keeps an item of a class that takes `bytes`.
    pub(crate) fn put(&mut self, class: usize, bytes: usize, item: T) {
        self.bytes += bytes;
        self.len += 1;
        let items = self.classes.entry(class).or_default();
        let since = Instant::now();
        items.push_back(Kept { since, bytes, item });
    }

    /// An item of this class, or of one that is larger by a quarter at most, and its class. Fresh pages
    /// cost more than a few that are not used.
    pub(crate) fn take(&mut self, class: usize) -> Option<(usize, T)> {
        let (&class, _) = self.classes.range(class..=class + class / 4).next()?;
        Some((class, self.remove(class, VecDeque::pop_back)?))
    }

    /// Gives up what was idle for longest.
    pub(crate) fn evict(&mut self) -> Option<T> {
        let (class, _) = self.oldest()?;
        self.remove(class, VecDeque::pop_front)
    }

    /// Gives up what has been idle for `age` or longer, the oldest first, until that makes `enough` bytes.
    /// The second answer is how many it makes.
    pub(crate) fn expire(&mut self, age: Duration, enough: usize) -> (Vec<T>, usize) {
        let now = Instant::now();
        let mut expired = Vec::new();
        let before = self.bytes;
        while before - self.bytes < enough
            && let Some((class, since)) = self.oldest()
            && now.saturating_duration_since(since) >= age
        {
            expired.extend(self.remove(class, VecDeque::pop_front));
        }
        (expired, before - self.bytes)
    }

    /// Gives up as much as is needed to keep at most `limit` bytes.
    pub(crate) fn shrink(&mut self, limit: usize) -> Vec<T> {
        let mut evicted = Vec::new();
        while self.bytes > limit {
            evicted.extend(self.evict());
        }
        evicted
    }

    /// The class of the item that is idle for longest, and since when.
    fn oldest(&self) -> Option<(usize, Instant)> {
        let fronts = self.classes.iter();
        let fronts = fronts.filter_map(|(&class, items)| Some((class, items.front()?.since)));
        fronts.min_by_key(|&(_, since)| since)
    }

    fn remove(
        &mut self,
        class: usize,
        pop: impl FnOnce(&mut VecDeque<Kept<T>>) -> Option<Kept<T>>,
    ) -> Option<T> {
        let items = self.classes.get_mut(&class)?;
        let kept = pop(items)?;
        if items.is_empty() {
            self.classes.remove(&class);
        }
        self.bytes -= kept.bytes;
        self.len -= 1;
        Some(kept.item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warmest_is_reused_and_the_coldest_given_up() {
        let mut idle = Idle::default();
        for (class, item) in [(10, 'a'), (20, 'b'), (10, 'c'), (20, 'd')] {
            idle.put(class, class, item);
        }
        assert_eq!(idle.bytes(), 60);
        assert_eq!(idle.take(10), Some((10, 'c')));
        assert_eq!(idle.take(11), None);
        idle.put(10, 10, 'c');
        assert_eq!(idle.shrink(30), ['a', 'b']);
        assert_eq!(idle.take(20), Some((20, 'd')));
        assert_eq!(idle.take(20), None);
        assert_eq!(idle.shrink(0), ['c']);
        assert_eq!((idle.bytes(), idle.evict()), (0, None));
    }

    #[test]
    fn somewhat_larger_items_are_used_where_none_fits_exactly() {
        let mut idle = Idle::default();
        for class in [90, 100, 110, 126] {
            idle.put(class, class, class);
        }
        assert_eq!(idle.take(100), Some((100, 100)));
        assert_eq!(idle.take(100), Some((110, 110)));
        assert_eq!(idle.take(100), None, "more than a quarter would be wasted");
        assert_eq!(idle.take(101), Some((126, 126)));
        assert_eq!(idle.bytes(), 90);
    }

    #[test]
    fn what_was_idle_for_long_expires() {
        let mut idle = Idle::default();
        for (class, item) in [(10, 'a'), (20, 'b')] {
            idle.put(class, class, item);
        }
        assert_eq!(idle.expire(Duration::from_secs(3600), 100), (vec![], 0));
        assert_eq!(idle.bytes(), 30);
        assert_eq!(idle.expire(Duration::ZERO, 0), (vec![], 0));
        assert_eq!(idle.expire(Duration::ZERO, 1), (vec!['a'], 10));
        assert_eq!(idle.bytes(), 20);
        idle.put(10, 10, 'c');
        assert_eq!(
            idle.expire(Duration::ZERO, usize::MAX),
            (vec!['b', 'c'], 30)
        );
        assert_eq!(idle.bytes(), 0);
    }
}
