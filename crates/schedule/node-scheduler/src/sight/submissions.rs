//! Which groups tasks are of that were submitted, and of which groups their inputs are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use treadle_messages::Batch;
use treadle_sight::{Event, OTHERS};
use treadle_types::{ClientId, keys};

/// Keys of a client whose groups are remembered: tasks that come later read them.
const MOST: usize = 1 << 18;
/// Clients of which they are.
const MOST_CLIENTS: usize = 32;
/// Groups that are told apart.
const MOST_GROUPS: usize = 4_096;
/// Edges of a batch that are looked at.
const MOST_EDGES: usize = 1 << 16;

/// What a batch of a client's says of its tasks.
#[derive(Debug)]
pub(crate) struct Submitted {
    client: ClientId,
    first: u32,
    keys: Vec<Bytes>,
    tasks: Vec<u32>,
    offsets: Vec<u32>,
    inputs: Vec<u32>,
}

impl Submitted {
    /// What there is in a batch: the keys are not copied.
    pub(crate) fn of(client: ClientId, batch: &Batch) -> Self {
        Self {
            client,
            first: batch.first,
            keys: batch.keys.clone(),
            tasks: batch.tasks.clone(),
            offsets: batch.offsets.clone(),
            inputs: batch.inputs.clone(),
        }
    }

    /// What it takes, about.
    pub(in crate::sight) fn bytes(&self) -> usize {
        let keys = self.keys.iter().map(|key| key.len() + size_of::<Bytes>());
        let columns = self.tasks.len() + self.offsets.len() + self.inputs.len();
        keys.sum::<usize>() + 4 * columns
    }
}

/// The groups of a client's latest keys.
#[derive(Debug, Default)]
struct Latest {
    /// The local id of the first.
    first: u32,
    groups: VecDeque<u16>,
}

impl Latest {
    fn add(&mut self, id: u32, group: u16) {
        let next = self.first.wrapping_add(self.groups.len() as u32);
        if id != next {
            self.groups.clear();
            self.first = id;
        }
        if self.groups.len() == MOST {
            self.groups.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.groups.push_back(group);
    }

    fn get(&self, id: u32) -> Option<u16> {
        self.groups
            .get(id.wrapping_sub(self.first) as usize)
            .copied()
    }
}

/// All that was submitted.
#[derive(Debug, Default)]
pub(in crate::sight) struct Submissions {
    names: Vec<String>,
    by_name: BTreeMap<String, u16>,
    clients: BTreeMap<ClientId, Latest>,
    /// Pairs that were told: who reads whom.
    known: BTreeSet<(u16, u16)>,
}

impl Submissions {
    fn intern(&mut self, name: &str) -> u16 {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        if self.names.len() == MOST_GROUPS {
            return MOST_GROUPS as u16;
        }
        let number = self.names.len() as u16;
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), number);
        number
    }

    /// Those that there was no room for are one.
    fn name(&self, group: u16) -> &str {
        let name = self.names.get(usize::from(group));
        name.map_or(OTHERS, String::as_str)
    }

    /// Takes in a batch; what follows from it.
    pub(in crate::sight) fn take(&mut self, submitted: &Submitted) -> Vec<Event<'static>> {
        if self.clients.len() >= MOST_CLIENTS && !self.clients.contains_key(&submitted.client) {
            self.clients.pop_first();
        }
        let mut latest = self.clients.remove(&submitted.client).unwrap_or_default();
        let mut last: (&str, u16) = ("", u16::MAX);
        for (id, key) in (submitted.first..).zip(&submitted.keys) {
            let name = keys::group(key);
            if last.0 != name || last.1 == u16::MAX {
                last = (name, self.intern(name));
            }
            latest.add(id, last.1);
        }
        let mut counts: BTreeMap<u16, u64> = BTreeMap::new();
        let mut edges: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
        let mut looked = 0;
        for (row, task) in submitted.tasks.iter().enumerate() {
            let Some(group) = latest.get(*task) else {
                continue;
            };
            *counts.entry(group).or_default() += 1;
            let range = submitted
                .offsets
                .get(row)
                .zip(submitted.offsets.get(row + 1));
            let inputs =
                range.and_then(|(from, to)| submitted.inputs.get(*from as usize..*to as usize));
            for input in inputs.unwrap_or_default() {
                looked += 1;
                if looked > MOST_EDGES {
                    break;
                }
                if let Some(input) = latest.get(*input)
                    && input != group
                    && self.known.len() < 16 * MOST_GROUPS
                    && self.known.insert((group, input))
                {
                    edges.entry(group).or_default().insert(input);
                }
            }
        }
        self.clients.insert(submitted.client, latest);
        let counts = counts.into_iter();
        let counts = counts.map(|(group, count)| (self.name(group).to_owned(), count));
        let mut events = vec![Event::Submitted(counts.collect())];
        for (group, inputs) in edges {
            let inputs = inputs.into_iter();
            events.push(Event::Inputs {
                group: self.name(group).to_owned(),
                inputs: inputs.map(|input| self.name(input).to_owned()).collect(),
            });
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::Value;

    use super::*;

    fn key(name: &str) -> Bytes {
        Value::str(name.to_owned()).to_bytes().into()
    }

    fn batch(first: u32, names: &[&str], inputs: &[&[u32]]) -> Submitted {
        let mut batch = Batch {
            first,
            keys: names.iter().map(|name| key(name)).collect(),
            tasks: (first..first + names.len() as u32).collect(),
            offsets: vec![0],
            ..Batch::default()
        };
        for inputs in inputs {
            batch.inputs.extend_from_slice(inputs);
            batch.offsets.push(batch.inputs.len() as u32);
        }
        Submitted::of(ClientId(1), &batch)
    }

    #[test]
    fn groups_are_counted_and_their_inputs_named_once() {
        let mut submissions = Submissions::default();
        let events = submissions.take(&batch(
            0,
            &["inc-1", "inc-2", "sum-1"],
            &[&[], &[], &[0, 1]],
        ));
        assert_eq!(
            events,
            [
                Event::Submitted(vec![("inc".into(), 2), ("sum".into(), 1)]),
                Event::Inputs {
                    group: "sum".into(),
                    inputs: vec!["inc".into()]
                },
            ]
        );
        // Of what came before, too.
        let events = submissions.take(&batch(3, &["top-1", "sum-2"], &[&[2, 0], &[1]]));
        assert_eq!(
            events,
            [
                Event::Submitted(vec![("sum".into(), 1), ("top".into(), 1)]),
                Event::Inputs {
                    group: "top".into(),
                    inputs: vec!["inc".into(), "sum".into()]
                },
            ]
        );
        // What makes no sense is left out.
        let mut odd = batch(9, &["x-1"], &[&[7, 400]]);
        odd.offsets = vec![0, 99];
        let events = submissions.take(&odd);
        assert_eq!(events, [Event::Submitted(vec![("x".into(), 1)])]);
    }

    #[test]
    fn names_are_kept_as_far_as_they_are_shown() {
        let mut submissions = Submissions::default();
        let long = "x".repeat(100_000);
        submissions.take(&batch(0, &[&long, &format!("{long}y")], &[&[], &[0]]));
        assert_eq!(submissions.names, [keys::short(&long)]);
    }

    #[test]
    fn groups_beyond_the_bound_count_as_one() {
        let mut submissions = Submissions::default();
        let names: Vec<String> = (0..MOST_GROUPS + 3)
            .map(|number| format!("group{number}x-1"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let events = submissions.take(&batch(0, &names, &[]));
        let [Event::Submitted(counts)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(counts.len(), MOST_GROUPS + 1);
        assert_eq!(counts.last(), Some(&(OTHERS.to_owned(), 3)));
    }
}
