//! What the tasks of each group did: groups are tasks whose keys begin with the same words.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use treadle_types::keys;

use crate::event::States;

/// How many groups are told apart; what else there is counts as one of them.
pub const MOST_GROUPS: usize = 2_000;
/// The name of all others.
pub const OTHERS: &str = "(other groups)";
/// Inputs of a group that are kept.
const MOST_INPUTS: usize = 32;
/// Pairs of group and worker that are told apart, to find slow workers.
const MOST_PAIRS: usize = 1 << 16;
/// Powers of two of nanoseconds.
const BUCKETS: usize = 48;

/// What the tasks of a group did. Times are nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) submitted: u64,
    pub(crate) runs: u64,
    pub(crate) failed: u64,
    pub(crate) time: u64,
    /// Of that, until the inputs were there.
    pub(crate) reading: u64,
    pub(crate) bytes: u64,
    pub(crate) longest: u64,
    /// The value of the task that took longest.
    pub(crate) longest_object: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) inputs: BTreeSet<u16>,
    /// Tasks by state, as the scheduler counts them.
    pub(crate) states: Option<States>,
    /// Runs by the logarithm of how long they took.
    buckets: [u32; BUCKETS],
}

impl Group {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            submitted: 0,
            runs: 0,
            failed: 0,
            time: 0,
            reading: 0,
            bytes: 0,
            longest: 0,
            longest_object: 0,
            from: u64::MAX,
            to: 0,
            inputs: BTreeSet::new(),
            states: None,
            buckets: [0; BUCKETS],
        }
    }

    /// How long half of the runs took at most, within a factor of two; 0: none ran.
    pub(crate) fn median(&self) -> u64 {
        let half = self
            .buckets
            .iter()
            .map(|count| u64::from(*count))
            .sum::<u64>()
            .div_ceil(2);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= half && half > 0 {
                return 1 << bucket;
            }
        }
        0
    }

    /// How many runs took at least a quarter of the longest, some of them an eighth.
    pub(crate) fn long(&self) -> u64 {
        let longest = (u64::BITS - self.longest.leading_zeros()) as usize;
        let from = longest.min(BUCKETS - 1).saturating_sub(2);
        self.buckets[from..]
            .iter()
            .map(|count| u64::from(*count))
            .sum()
    }

    pub(crate) fn mean(&self) -> u64 {
        self.time.checked_div(self.runs).unwrap_or(0)
    }
}

/// What one worker did of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) runs: u64,
    pub(crate) time: u64,
    /// The shortest run.
    pub(crate) least: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            runs: 0,
            time: 0,
            least: u64::MAX,
        }
    }
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    by_name: BTreeMap<String, u16>,
    /// How the tasks are of groups that have no number of their own.
    unnumbered: BTreeMap<String, States>,
    /// By group and row of the worker.
    shares: BTreeMap<(u16, u16), Share>,
}

impl Groups {
    pub(crate) fn new() -> Self {
        Self {
            groups: vec![Group::new(OTHERS)],
            by_name: BTreeMap::new(),
            unnumbered: BTreeMap::new(),
            shares: BTreeMap::new(),
        }
    }

    /// The number of a name; 0: there are too many.
    pub(crate) fn intern(&mut self, name: &str) -> u16 {
        let name = keys::short(name);
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        if name == OTHERS {
            return 0;
        }
        if self.groups.len() == MOST_GROUPS {
            return 0;
        }
        let number = self.groups.len() as u16;
        self.groups.push(Group::new(name));
        self.by_name.insert(name.to_owned(), number);
        number
    }

    pub(crate) fn get(&self, number: u16) -> Option<&Group> {
        self.groups.get(usize::from(number))
    }

    pub(crate) fn name(&self, number: u16) -> &str {
        self.get(number).map_or(OTHERS, |group| &group.name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Group)> {
        (0..).zip(&self.groups)
    }

    pub(crate) fn shares(&self) -> impl ExactSizeIterator<Item = (u16, u16, Share)> + '_ {
        self.shares
            .iter()
            .map(|(&(group, worker), &share)| (group, worker, share))
    }

    /// The shortest run of each group, whose it was, and the shortest of the others.
    pub(crate) fn shortest(&self) -> Vec<(u64, u16, u64)> {
        let mut least = vec![(u64::MAX, 0, u64::MAX); self.groups.len()];
        for (group, worker, share) in self.shares() {
            let known = &mut least[usize::from(group)];
            if share.least < known.0 {
                *known = (share.least, worker, known.0);
            } else {
                known.2 = known.2.min(share.least);
            }
        }
        least
    }

    /// A task of a group ran.
    #[inline]
    pub(crate) fn ran(
        &mut self,
        number: u16,
        worker: u16,
        (start, read, end): (u64, u64, u64),
        object: u64,
        bytes: u64,
        failed: bool,
    ) {
        let Some(group) = self.groups.get_mut(usize::from(number)) else {
            return;
        };
        let time = end.saturating_sub(start);
        group.runs += 1;
        group.failed += u64::from(failed);
        group.time = group.time.saturating_add(time);
        group.reading = group.reading.saturating_add(read.saturating_sub(start));
        group.bytes = group.bytes.saturating_add(bytes);
        if time > group.longest {
            (group.longest, group.longest_object) = (time, object);
        }
        group.from = group.from.min(start);
        group.to = group.to.max(end);
        let bucket = (u64::BITS - time.leading_zeros()) as usize;
        let runs = &mut group.buckets[bucket.min(BUCKETS - 1)];
        *runs = runs.saturating_add(1);
        if let Some(share) = self.share(number, worker) {
            share.runs += 1;
            share.time = share.time.saturating_add(time);
            share.least = share.least.min(time);
        }
    }

    #[inline]
    fn share(&mut self, group: u16, worker: u16) -> Option<&mut Share> {
        if self.shares.len() >= MOST_PAIRS {
            return self.shares.get_mut(&(group, worker));
        }
        Some(self.shares.entry((group, worker)).or_default())
    }

    pub(crate) fn submitted(&mut self, name: &str, count: u64) {
        let number = self.intern(name);
        let group = &mut self.groups[usize::from(number)];
        group.submitted = group.submitted.saturating_add(count);
    }

    /// How the tasks of a group are.
    pub(crate) fn stand(&mut self, name: &str, states: States) {
        let number = self.intern(name);
        if number > 0 {
            self.groups[usize::from(number)].states = Some(states);
            return;
        }
        // Of several: together.
        let name = keys::short(name);
        let has_room = self.unnumbered.len() < MOST_GROUPS;
        match self.unnumbered.get_mut(name) {
            Some(known) => *known = states,
            None if has_room => drop(self.unnumbered.insert(name.to_owned(), states)),
            None => {}
        }
        let none = States::default();
        let sum = self.unnumbered.values().fold(none, States::and);
        self.groups[0].states = Some(sum);
    }

    pub(crate) fn reads(&mut self, name: &str, inputs: &[String]) {
        let number = self.intern(name);
        for input in inputs.iter().take(MOST_INPUTS) {
            let input = self.intern(input);
            let known = &mut self.groups[usize::from(number)].inputs;
            if known.len() < MOST_INPUTS && input != number {
                known.insert(input);
            }
        }
    }

    pub(crate) fn check(&self) {
        assert!(self.groups.len() <= MOST_GROUPS);
        assert!(
            self.groups
                .iter()
                .all(|group| group.name.len() <= keys::LONGEST_GROUP)
        );
        assert_eq!(self.by_name.len() + 1, self.groups.len());
        assert!(self.shares.len() <= MOST_PAIRS);
        assert!(self.unnumbered.len() <= MOST_GROUPS);
        for (name, number) in &self.by_name {
            assert_eq!(&self.groups[usize::from(*number)].name, name);
        }
        for group in &self.groups {
            assert!(group.failed <= group.runs);
            assert!(group.longest <= group.time);
            let seen: u64 = group.buckets.iter().map(|count| u64::from(*count)).sum();
            let is_full = group.buckets.contains(&u32::MAX);
            assert!(seen == group.runs || is_full && seen < group.runs);
            assert!(group.inputs.len() <= MOST_INPUTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn groups_beyond_the_bound_are_one() {
        let mut groups = Groups::new();
        for number in 0..MOST_GROUPS + 10 {
            let group = groups.intern(&format!("group-{number}"));
            groups.ran(group, 0, (0, 0, 5), 1, 1, false);
        }
        groups.check();
        assert_eq!(groups.get(0).unwrap().runs, 11);
        assert_eq!(groups.intern("group-0"), 1);
        assert_eq!(Groups::new().intern(OTHERS), 0);
    }

    #[test]
    fn tasks_of_groups_without_a_number_are_added_up() {
        let mut groups = Groups::new();
        for number in 0..MOST_GROUPS {
            groups.intern(&format!("group-{number}"));
        }
        let states = |memory| States {
            memory,
            ..States::default()
        };
        for (name, memory) in [("late", 5), (OTHERS, 7), ("later", 1), ("late", 3)] {
            groups.stand(name, states(memory));
        }
        groups.check();
        assert_eq!(groups.get(0).unwrap().states, Some(states(11)));
    }

    #[test]
    fn long_names_are_cut() {
        let mut groups = Groups::new();
        let long = "ä".repeat(keys::LONGEST_GROUP);
        assert_eq!(groups.intern(&long), groups.intern(&format!("{long}y")));
        groups.check();
    }

    #[test]
    fn the_median_is_that_of_most() {
        let mut groups = Groups::new();
        let group = groups.intern("x");
        for _ in 0..9 {
            groups.ran(group, 0, (0, 0, 1_000), 1, 0, false);
        }
        groups.ran(group, 0, (0, 0, 1_000_000), 2, 0, false);
        let group = groups.get(group).unwrap();
        assert_eq!(group.median(), 1_024);
        assert_eq!((group.longest, group.longest_object), (1_000_000, 2));
    }

    #[test]
    fn a_bucket_may_be_full() {
        let mut groups = Groups::new();
        let number = groups.intern("x");
        let group = &mut groups.groups[usize::from(number)];
        (group.buckets[10], group.runs) = (u32::MAX, u32::MAX.into());
        groups.ran(number, 0, (0, 0, 1_000), 1, 0, false);
        groups.check();
        assert_eq!(groups.get(number).unwrap().median(), 1_024);
    }
}
