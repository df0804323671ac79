//! What shuffles had that have ended, by their names: one of the same name and shape will have about as much. Pure.

use std::collections::BTreeMap;

use crate::wire::Register;

/// So many are remembered: those that have ended last.
const MOST: usize = 4096;
/// The next one may have more, so many times as much.
const MARGIN: u64 = 2;
/// The largest of so many counts: an empty one between others says little.
const LAST: usize = 4;
/// What a client calls a shuffle that was given no name. Those have nothing in common.
const UNNAMED: &str = "shuffle";

/// Name, maps and partitions.
type Key = (String, u32, u32);

#[derive(Default)]
pub(super) struct Pushed {
    /// What the last ones had, the latest first, with the number of that one.
    bytes: BTreeMap<Key, ([u64; LAST], u64)>,
    last: u64,
}

impl Pushed {
    /// A shuffle has ended that had so many bytes.
    pub(super) fn ended(&mut self, is: &Register, bytes: u64) {
        let Some(key) = key(is) else {
            return;
        };
        self.last += 1;
        let (had, at) = self.bytes.entry(key).or_default();
        had.rotate_right(1);
        // Empty, it is known all the same.
        (had[0], *at) = (bytes.max(1), self.last);
        if self.bytes.len() > MOST {
            let ended = self.bytes.iter().map(|(key, &(_, at))| (at, key));
            if let Some(oldest) = ended.min().map(|(_, key)| key.clone()) {
                self.bytes.remove(&oldest);
            }
        }
    }

    /// How many bytes a shuffle is expected to have. 0: there was none like it.
    pub(super) fn of(&self, is: &Register) -> u64 {
        let found = key(is).and_then(|key| self.bytes.get(&key));
        let most = found.and_then(|(had, _)| had.iter().max());
        most.map_or(0, |most| most.saturating_mul(MARGIN))
    }
}

/// `None`: nothing is learnt from it.
fn key(is: &Register) -> Option<Key> {
    // Those of Dask end with their numbers.
    let name = is
        .name
        .rsplit_once(" #")
        .map_or(&*is.name, |(name, _)| name);
    let is_named = !name.is_empty() && name != UNNAMED;
    is_named.then(|| (name.into(), is.maps, is.partitions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffle(name: &str, maps: u32) -> Register {
        Register {
            name: name.into(),
            maps,
            partitions: 7,
            ..Register::default()
        }
    }

    #[test]
    fn one_of_the_same_name_and_shape_is_expected_to_have_as_much_as_the_largest_of_the_last_few_or_some_more()
     {
        let mut pushed = Pushed::default();
        assert_eq!(pushed.of(&shuffle("sales #3", 4)), 0);
        pushed.ended(&shuffle("sales #3", 4), 100);
        pushed.ended(&shuffle("sales #4", 4), 50);
        assert_eq!(pushed.of(&shuffle("sales #9", 4)), 200);
        assert_eq!(pushed.of(&shuffle("sales", 4)), 200);
        assert_eq!(pushed.of(&shuffle("sales #9", 5)), 0);
        pushed.ended(&shuffle("empty", 4), 0);
        assert_eq!(pushed.of(&shuffle("empty", 4)), 2);
        // What was long ago is forgotten.
        for _ in 1..LAST {
            pushed.ended(&shuffle("sales", 4), 0);
            assert!(pushed.of(&shuffle("sales", 4)) >= 100);
        }
        pushed.ended(&shuffle("sales", 4), 7);
        assert_eq!(pushed.of(&shuffle("sales", 4)), 14);
    }

    #[test]
    fn nothing_is_learnt_from_shuffles_without_a_name() {
        let mut pushed = Pushed::default();
        for name in ["", "shuffle", "shuffle #3"] {
            pushed.ended(&shuffle(name, 4), 1);
            assert_eq!(pushed.of(&shuffle(name, 4)), 0, "{name}");
        }
    }

    #[test]
    fn it_remembers_those_that_have_ended_last() {
        let mut pushed = Pushed::default();
        for number in 0..2 * MOST {
            pushed.ended(&shuffle(&format!("{number}"), 4), 1);
        }
        assert_eq!(pushed.bytes.len(), MOST);
        assert_eq!(pushed.of(&shuffle("0", 4)), 0);
        assert_eq!(pushed.of(&shuffle(&format!("{}", 2 * MOST - 1), 4)), 2);
    }
}
