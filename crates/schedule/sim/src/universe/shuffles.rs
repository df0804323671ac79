//! Graphs with a shuffle, as Dask's P2P has them: transfers, a barrier that reads them all, and tasks that
//! read the barrier and a partition each.

use treadle_shuffle_sim::hosted::Inputs;
use treadle_types::{INLINE, Runs};

use super::{Habit, Key, Kind, Raises, Spec, Traits, Universe};
use crate::kernel::Random;

/// What a task does in a shuffle, which is named by its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// It pushes the rows of a map.
    Transfer(usize, u32),
    Barrier(usize),
    /// It reads a partition.
    Read(usize, u32),
}

impl Part {
    /// Of which shuffle.
    pub(crate) fn shuffle(self) -> usize {
        match self {
            Self::Transfer(shuffle, _) | Self::Barrier(shuffle) | Self::Read(shuffle, _) => shuffle,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    pub(crate) inputs: Inputs,
    pub(crate) outputs: Runs,
}

/// The name by which tasks call a shuffle.
pub(crate) fn name(shuffle: usize) -> String {
    format!("shuffle-{shuffle}")
}

impl Spec {
    /// Whether only tasks of a shuffle use the value.
    pub(crate) fn is_within_shuffle(&self) -> bool {
        matches!(self.part, Some(Part::Transfer(..) | Part::Barrier(_)))
    }

    /// Whether it is a transfer: it runs only where its barrier is known.
    pub(crate) fn is_transfer(&self) -> bool {
        matches!(self.part, Some(Part::Transfer(..)))
    }
}

impl Universe {
    /// Adds a graph with a shuffle.
    pub(crate) fn add_shuffle(&mut self, random: &mut Random, traits: &Traits) {
        let first = self.specs.len();
        let shuffle = self.shuffles.len();
        (self.data, self.actor) = (None, None);
        let maps = random.between(1, 8) as u32;
        let partitions = random.between(1, 8) as u32;
        let some: Runs = (0..u64::from(partitions))
            .filter(|_| random.chance(60))
            .collect();
        let outputs = match random.chance(25) && !some.is_empty() {
            true => some,
            false => Runs::range(0, u64::from(partitions)),
        };
        let inputs = Inputs {
            data: random.next() >> 32,
            maps,
            partitions,
            rows: random.pick(&[0, 10, 60, 60]),
            is_deterministic: random.chance(85),
        };
        // Receipts with many groups are large.
        let receipt = random.pick(&[100, 100, 100, INLINE as u64 + 100]);
        let transfers: Vec<Key> = (0..maps)
            .map(|map| {
                let made = random.chance(70).then(|| self.add(vec![], random, traits));
                let made = made.into_iter().collect();
                self.add_part(Part::Transfer(shuffle, map), made, receipt, random, traits)
            })
            .collect();
        let barrier = self.add_part(Part::Barrier(shuffle), transfers, 40, random, traits);
        let reads: Vec<Key> = outputs
            .iter()
            .map(|partition| {
                let part = Part::Read(shuffle, partition as u32);
                let nbytes = random.between(INLINE as u64 + 1, traits.largest);
                self.add_part(part, vec![barrier], nbytes, random, traits)
            })
            .collect();
        match random.below(3) {
            0 => {}
            1 => {
                self.add(reads, random, traits);
            }
            _ => {
                let each: Vec<Key> = reads
                    .iter()
                    .map(|&read| self.add(vec![read], random, traits))
                    .collect();
                self.add(each, random, traits);
            }
        }
        self.shuffles.push(Shuffle { inputs, outputs });
        self.add_graph_from(first);
    }

    fn add_part(
        &mut self,
        part: Part,
        inputs: Vec<Key>,
        nbytes: u64,
        random: &mut Random,
        traits: &Traits,
    ) -> Key {
        let key = self.add_kind(Kind::Task, inputs, random, traits);
        let spec = &mut self.specs[key.0 as usize];
        spec.part = Some(part);
        spec.nbytes = nbytes;
        spec.is_immovable = false;
        spec.raises = Raises::Never;
        spec.gives_back = 0;
        spec.habit = Habit::Plain;
        spec.has_effects = spec.is_within_shuffle();
        if spec.has_effects {
            spec.constraint = 0;
        }
        key
    }
}
