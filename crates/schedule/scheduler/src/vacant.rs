//! Ids that can be handed out again.

use alloc::vec::Vec;
use treadle_types::TaskId;

/// A set of ids of which the lowest is taken out.
///
/// Tasks that come together get neighbouring ids, in ascending order, however those before them went:
/// their records lie in neighbouring cache lines then. What was freed last would be found faster,
/// and after some graphs all ids would be scattered.
///
/// One bit an id, and one for each 64 of them.
#[derive(Debug, Default)]
pub(crate) struct Vacant {
    words: Vec<u64>,
    /// Bit `w` of them all says that `words[w]` is not 0.
    summary: Vec<u64>,
    /// No word of the summary before this one has a bit.
    first: usize,
}

impl Vacant {
    /// Adds an id that is not there.
    pub(crate) fn add(&mut self, id: TaskId) {
        let word = id.index() / 64;
        let above = word / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
            self.summary.resize(above + 1, 0);
        }
        self.words[word] |= 1 << (id.index() % 64);
        self.summary[above] |= 1 << (word % 64);
        self.first = self.first.min(above);
    }

    /// Takes the lowest id out.
    pub(crate) fn take(&mut self) -> Option<TaskId> {
        while *self.summary.get(self.first)? == 0 {
            self.first += 1;
        }
        let above = &mut self.summary[self.first];
        let at = self.first * 64 + above.trailing_zeros() as usize;
        let word = &mut self.words[at];
        let id = TaskId((at * 64) as u32 + word.trailing_zeros());
        *word &= *word - 1;
        if *word == 0 {
            *above &= *above - 1;
        }
        Some(id)
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        (self.words.capacity() + self.summary.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gives_the_lowest(steps in prop::collection::vec((any::<bool>(), 0u32..20_000), 0..300)) {
            let mut vacant = Vacant::default();
            let mut model = BTreeSet::new();
            for (adds, id) in steps {
                if adds && model.insert(id) {
                    vacant.add(TaskId(id));
                } else if !adds {
                    prop_assert_eq!(vacant.take().map(|id| id.0), model.pop_first());
                }
            }
            while let Some(id) = vacant.take() {
                prop_assert_eq!(Some(id.0), model.pop_first());
            }
            prop_assert!(model.is_empty());
        }
    }
}
