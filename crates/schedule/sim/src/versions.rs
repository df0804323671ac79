//! Tasks that return other values when they run again: what was computed from the values before does not
//! count any more, as with a shuffle whose inputs have other rows.

use std::collections::BTreeSet;

use crate::kernel::mix;
use crate::universe::{Key, Universe, evaluate};

/// The value of each key as things stand, and those that it had before.
#[derive(Default)]
pub(crate) struct Versions {
    /// By key, how often the task has changed its mind.
    numbers: Vec<u64>,
    now: Vec<u64>,
    ever: BTreeSet<(Key, u64)>,
}

impl Versions {
    pub(crate) fn new(universe: &Universe) -> Self {
        let mut versions = Self {
            numbers: vec![0; universe.specs.len()],
            ..Self::default()
        };
        versions.count_anew(universe);
        versions
    }

    /// From now on, these tasks return something else.
    pub(crate) fn change(&mut self, keys: &[Key], universe: &Universe) {
        for key in keys {
            self.numbers[key.0 as usize] += 1;
        }
        self.count_anew(universe);
    }

    fn count_anew(&mut self, universe: &Universe) {
        self.now.clear();
        for (key, spec) in (0..).map(Key).zip(&universe.specs) {
            let inputs = spec.inputs.iter().map(|input| self.now[input.0 as usize]);
            let value = self.evaluate(key, inputs);
            self.now.push(value);
            self.ever.insert((key, value));
        }
    }

    /// What a task returns now that reads these values.
    pub(crate) fn evaluate(&self, key: Key, inputs: impl Iterator<Item = u64>) -> u64 {
        let value = evaluate(key, inputs);
        match self.numbers[key.0 as usize] {
            0 => value,
            number => mix(value ^ number),
        }
    }

    /// Whether a key has this value, as things stand.
    pub(crate) fn is_current(&self, key: Key, value: u64) -> bool {
        self.now[key.0 as usize] == value
    }

    /// Whether a key has, or once had, this value: whoever has it may not have heard yet.
    pub(crate) fn was_current(&self, key: Key, value: u64) -> bool {
        self.ever.contains(&(key, value))
    }
}
