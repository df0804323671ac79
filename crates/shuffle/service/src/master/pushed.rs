//! What shuffles had that have ended, by their names: one of the same name and shape will have about as much. Pure.

use std::collections::BTreeMap;

use crate::wire::Register;

/// So many are remembered: those that have ended last.
const MOST: usize = 4096;
/// The next one may have more, so many times as much.
const MARGIN: u64 = 2;

/// Name, maps and partitions.
type Key = (String, u32, u32);

#[derive(Default)]
pub(super) struct Pushed {
    /// With the number of the one that had it.
    bytes: BTreeMap<Key, (u64, u64)>,
    last: u64,
}

impl Pushed {
    /// A shuffle has ended that had so many bytes.
    pub(super) fn ended(&mut self, is: &Register, bytes: u64) {
        self.last += 1;
        self.bytes.insert(key(is), (bytes, self.last));
        if self.bytes.len() > MOST {
            let ended = self.bytes.iter().map(|(key, &(_, at))| (at, key));
            if let Some(oldest) = ended.min().map(|(_, key)| key.clone()) {
                self.bytes.remove(&oldest);
            }
        }
    }

    /// How many bytes a shuffle is expected to have. 0: there was none like it.
    pub(super) fn of(&self, is: &Register) -> u64 {
        let found = self.bytes.get(&key(is));
        found.map_or(0, |&(bytes, _)| bytes.max(1).saturating_mul(MARGIN))
    }
}

fn key(is: &Register) -> Key {
    // Those of Dask end with their numbers.
    let name = is
        .name
        .rsplit_once(" #")
        .map_or(&*is.name, |(name, _)| name);
    (name.into(), is.maps, is.partitions)
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
    fn one_of_the_same_name_and_shape_is_expected_to_have_as_much_as_the_last_or_some_more() {
        let mut pushed = Pushed::default();
        assert_eq!(pushed.of(&shuffle("sales #3", 4)), 0);
        pushed.ended(&shuffle("sales #3", 4), 100);
        pushed.ended(&shuffle("sales #4", 4), 50);
        assert_eq!(pushed.of(&shuffle("sales #9", 4)), 100);
        assert_eq!(pushed.of(&shuffle("sales", 4)), 100);
        assert_eq!(pushed.of(&shuffle("sales #9", 5)), 0);
        pushed.ended(&shuffle("empty", 4), 0);
        assert_eq!(pushed.of(&shuffle("empty", 4)), 2);
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
