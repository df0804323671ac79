//! A client's numbers of keys.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use treadle_types::TaskId;

/// Numbers of a page.
const PAGE: usize = 256;

/// Something that can be absent, without taking memory for that.
trait Absent: Copy + PartialEq {
    const ABSENT: Self;
}

impl Absent for u32 {
    const ABSENT: Self = u32::MAX;
}

/// Numbers by number, in pages: what is not used takes no memory to speak of.
#[derive(Debug)]
struct Pages<T> {
    pages: Vec<Option<Box<Page<T>>>>,
}

#[derive(Debug)]
struct Page<T> {
    live: usize,
    entries: [T; PAGE],
}

impl<T: Absent> Pages<T> {
    #[inline]
    fn get(&self, at: u32) -> Option<T> {
        let page = self.pages.get(at as usize / PAGE)?.as_ref()?;
        let entry = page.entries[at as usize % PAGE];
        (entry != T::ABSENT).then_some(entry)
    }

    #[inline]
    fn set(&mut self, at: u32, value: T) {
        let place = at as usize / PAGE;
        if place >= self.pages.len() {
            self.pages.resize_with(place + 1, || None);
        }
        let page = self.pages[place].get_or_insert_with(|| {
            Box::new(Page {
                live: 0,
                entries: [T::ABSENT; PAGE],
            })
        });
        let entry = &mut page.entries[at as usize % PAGE];
        page.live += usize::from(*entry == T::ABSENT);
        *entry = value;
    }

    fn clear(&mut self, at: u32) -> Option<T> {
        let slot = self.pages.get_mut(at as usize / PAGE)?;
        let page = slot.as_mut()?;
        let entry = mem::replace(&mut page.entries[at as usize % PAGE], T::ABSENT);
        if entry == T::ABSENT {
            return None;
        }
        page.live -= 1;
        if page.live == 0 {
            *slot = None;
        }
        Some(entry)
    }
}

/// What a local id means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Local {
    pub(crate) task: TaskId,
    /// Which use of the task's number is meant.
    pub(crate) generation: u32,
}

impl Absent for Local {
    const ABSENT: Self = Self {
        task: TaskId(u32::MAX),
        generation: 0,
    };
}

/// The local ids of a client. Those of tasks that it wants live until it releases them, others until
/// their submission ends.
#[derive(Debug)]
pub(crate) struct Locals {
    forward: Pages<Local>,
    /// By task: the id under which it is wanted.
    wanted: Pages<u32>,
    /// The first id that was never mentioned.
    next: u32,
}

impl Locals {
    pub(crate) fn new() -> Self {
        Self {
            forward: Pages { pages: Vec::new() },
            wanted: Pages { pages: Vec::new() },
            next: 0,
        }
    }

    /// Names keys from `first` on, so many of them. `false`: ids were used before, or so many were
    /// left out that memory would be wasted.
    pub(crate) fn name(&mut self, first: u32, count: usize) -> bool {
        /// Ids that a client may skip at a time.
        const SKIPPED: u32 = 1 << 20;
        let end = u64::from(first) + count as u64;
        if first < self.next || first - self.next > SKIPPED || end > u64::from(u32::MAX) {
            return false;
        }
        self.next = end as u32;
        true
    }

    /// Whether an id was mentioned, now or before.
    pub(crate) fn was_named(&self, id: u32) -> bool {
        id < self.next
    }

    pub(crate) fn set(&mut self, id: u32, local: Local) {
        self.forward.set(id, local);
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<Local> {
        self.forward.get(id)
    }

    pub(crate) fn clear(&mut self, id: u32) -> Option<Local> {
        self.forward.clear(id)
    }

    /// Notices of the task carry this id.
    pub(crate) fn want(&mut self, task: TaskId, id: u32) {
        self.wanted.set(task.0, id);
    }

    pub(crate) fn unwant(&mut self, task: TaskId) {
        self.wanted.clear(task.0);
    }

    /// The id under which a task is wanted.
    #[inline]
    pub(crate) fn wanted(&self, task: TaskId) -> Option<u32> {
        self.wanted.get(task.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_named_once_and_in_order() {
        let mut locals = Locals::new();
        assert!(locals.name(0, 10));
        assert!(!locals.name(5, 1), "used before");
        assert!(locals.name(12, 1), "some were left out");
        assert!(!locals.name(u32::MAX, 1), "too many were left out");
        assert!(locals.was_named(11) && locals.was_named(12) && !locals.was_named(13));
    }

    #[test]
    fn what_is_cleared_takes_no_memory() {
        let mut locals = Locals::new();
        let local = Local {
            task: TaskId(7),
            generation: 1,
        };
        locals.set(100_000, local);
        assert_eq!(locals.get(100_000), Some(local));
        assert_eq!(locals.clear(100_000), Some(local));
        assert_eq!(locals.clear(100_000), None);
        assert!(locals.forward.pages.iter().all(Option::is_none));
        locals.want(TaskId(9), 3);
        assert_eq!(locals.wanted(TaskId(9)), Some(3));
        locals.unwant(TaskId(9));
        assert_eq!(locals.wanted(TaskId(9)), None);
    }
}
