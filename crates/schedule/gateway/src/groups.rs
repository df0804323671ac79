//! Groups of tasks: those whose keys begin with the same words.

use alloc::boxed::Box;
use alloc::vec::Vec;

use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;
use treadle_types::keys;

/// Groups that are told apart.
const MOST: usize = 2_000;

/// Numbers of groups. 0 is all others: those that there is no room for, or all where nobody watches.
#[derive(Debug)]
pub(crate) struct Groups {
    is_on: bool,
    /// By number less one.
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u16, SeedableRandomState>,
    /// That of the last task: as a rule, the next one has the same.
    last: u16,
}

impl Groups {
    pub(crate) fn new(is_on: bool, hasher: SeedableRandomState) -> Self {
        Self {
            is_on,
            names: Vec::new(),
            numbers: HashMap::with_hasher(hasher),
            last: 0,
        }
    }

    /// The group of an encoded key.
    #[inline]
    pub(crate) fn number(&mut self, key: &[u8]) -> u16 {
        if !self.is_on {
            return 0;
        }
        let name = keys::group(key);
        if self.name(self.last) != Some(name) {
            self.last = self.find_or_add(name);
        }
        self.last
    }

    fn find_or_add(&mut self, name: &str) -> u16 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.names.len() + 1 == MOST {
            return 0;
        }
        self.names.push(name.into());
        let number = self.names.len() as u16;
        self.numbers.insert(name.into(), number);
        number
    }

    /// The name of a group; none of group 0.
    #[inline]
    pub(crate) fn name(&self, number: u16) -> Option<&str> {
        let name = self.names.get(usize::from(number).checked_sub(1)?)?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::Value;

    use super::*;

    fn key(text: &str) -> Vec<u8> {
        Value::Str(text.into()).to_bytes()
    }

    #[test]
    fn groups_have_numbers_and_are_bounded() {
        let mut groups = Groups::new(true, SeedableRandomState::fixed());
        assert_eq!(groups.number(&key("inc-1")), 1);
        assert_eq!(groups.number(&key("inc-2")), 1);
        assert_eq!(groups.number(&key("sum-1")), 2);
        assert_eq!(groups.number(&key("inc-3")), 1);
        assert_eq!((groups.name(0), groups.name(2)), (None, Some("sum")));
        for number in 0..2 * MOST {
            groups.number(&key(&format!("group{number}x-1")));
        }
        assert_eq!(groups.names.len() + 1, MOST);
        assert_eq!(groups.number(&key("another-1")), 0);
        assert_eq!(groups.number(&key("sum-2")), 2);
        // Of a long name, the part that is kept tells it from others.
        let mut groups = Groups::new(true, SeedableRandomState::fixed());
        let long = "x".repeat(100_000);
        assert_eq!(
            groups.number(&key(&long)),
            groups.number(&key(&format!("{long}y")))
        );
        assert_eq!(groups.names[0].len(), keys::LONGEST_GROUP);
        assert_eq!(
            Groups::new(false, SeedableRandomState::fixed()).number(&key("inc-1")),
            0
        );
    }
}
