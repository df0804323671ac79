//! What there is to compute: keys with their tasks, and the values that a sequential run gives them.

mod shuffles;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use treadle_types::value::Reader;
use treadle_types::{Constraint, INLINE, Symbol};

use crate::kernel::{Random, mix};

pub(crate) use shuffles::{Part, Shuffle, name as shuffle_name};

/// A key. Its task reads only keys of smaller numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(pub(crate) u32);

/// For so long a task waits for another one at most: that may have been cancelled, or fail.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Whether a task raises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Raises {
    Never,
    /// The first times that it runs, in all the world.
    Times(u32),
    Always,
}

/// What a task does besides computing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Habit {
    Plain,
    /// It gives its slot away, and takes it back before it ends.
    Secedes,
    /// It gives its slot away for good.
    Leaves,
    /// It ends when the task of another key has run, or after [`LONGEST_WAIT`].
    Waits(Key),
}

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// No task computes it: clients put it.
    pub(crate) is_data: bool,
    /// The value stays where it was made.
    pub(crate) is_actor: bool,
    /// Nobody else can be sent the value.
    pub(crate) is_immovable: bool,
    /// The task does more than return a value.
    pub(crate) has_effects: bool,
    /// What it does beside its value survives the worker.
    pub(crate) lasts: bool,
    /// What it does in a shuffle.
    pub(crate) part: Option<Part>,
    pub(crate) inputs: Vec<Key>,
    pub(crate) nbytes: u64,
    pub(crate) duration: Duration,
    pub(crate) function: Symbol,
    pub(crate) raises: Raises,
    /// The first times that it runs, in all the world, it asks to run elsewhere.
    pub(crate) gives_back: u32,
    pub(crate) retries: u32,
    pub(crate) habit: Habit,
    /// The user's priority.
    pub(crate) priority: i32,
    /// One past the index of a constraint of the world; 0: none.
    pub(crate) constraint: u32,
    /// What a sequential run computes.
    pub(crate) value: u64,
    /// The key, those that its task reads, and so on.
    pub(crate) lineage: BTreeSet<Key>,
}

/// A graph that clients submit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) keys: Vec<Key>,
    /// What nobody of the graph reads.
    pub(crate) outputs: Vec<Key>,
}

/// What a plan says about tasks.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    /// Longest time that a task takes, in microseconds.
    pub(crate) longest: u64,
    /// Percentage of tasks with a small value.
    pub(crate) small: u64,
    /// Size of the largest value.
    pub(crate) largest: u64,
    /// Percentages.
    pub(crate) raising: u64,
    pub(crate) giving_back: u64,
    pub(crate) immovable: u64,
    pub(crate) seceding: u64,
    pub(crate) waiting: u64,
    pub(crate) constrained: u64,
    pub(crate) constraints: Vec<Constraint>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Universe {
    pub(crate) specs: Vec<Spec>,
    pub(crate) graphs: Vec<Graph>,
    pub(crate) shuffles: Vec<Shuffle>,
    /// What tasks of the graph that is being added may read besides what its shape says.
    data: Option<Key>,
    actor: Option<Key>,
}

/// What kind of key is added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Task,
    Data,
    Actor,
}

/// How many definitions each client has: a function each, and what some tasks use besides.
pub(crate) const DEFINITIONS: u32 = 4;

impl Spec {
    /// What the recipe refers to, the function first.
    pub(crate) fn definitions(&self) -> Vec<u32> {
        let mut numbers = vec![self.function.0];
        if self.value.is_multiple_of(3) {
            numbers.push(DEFINITIONS - 1);
        }
        numbers
    }

    /// Whether the value travels in reports.
    pub(crate) fn is_small(&self) -> bool {
        match self.part {
            // Receipts and generations are data, however large.
            Some(Part::Transfer(..) | Part::Barrier(_)) => self.nbytes <= INLINE as u64,
            Some(Part::Read(..)) => false,
            None => is_small(self.nbytes, self.value) && !self.is_actor,
        }
    }
}

/// Whether such a value travels in reports: not where it is more than data, however small.
fn is_small(nbytes: u64, value: u64) -> bool {
    nbytes <= INLINE as u64 && !value.is_multiple_of(4)
}

impl Universe {
    pub(crate) fn spec(&self, key: Key) -> &Spec {
        &self.specs[key.0 as usize]
    }

    /// Adds a graph of a random shape, which may read earlier ones.
    pub(crate) fn add_graph(&mut self, random: &mut Random, traits: &Traits) {
        let first = self.specs.len();
        let size = random.pick(&[1, 2, 4, 8, 12, 20, 40]);
        (self.data, self.actor) = (None, None);
        if random.chance(30) {
            self.data = Some(self.add_kind(Kind::Data, vec![], random, traits));
        }
        if random.chance(15) {
            self.actor = Some(self.add_kind(Kind::Actor, vec![], random, traits));
        }
        match random.below(6) {
            0 => self.chains(size, random, traits),
            1 => self.tree(size, random, traits),
            2 => self.layers(size, random, traits),
            3 => self.exchange(size, random, traits),
            4 => self.anything(size, random, traits),
            _ => {
                for _ in 0..size {
                    self.add(vec![], random, traits);
                }
            }
        }
        self.add_graph_from(first);
    }

    /// The keys from one on are a graph.
    fn add_graph_from(&mut self, first: usize) {
        let keys = self.keys_from(first);
        let read: BTreeSet<_> = keys
            .iter()
            .flat_map(|&key| &self.spec(key).inputs)
            .collect();
        let is_output = |key: &&Key| !read.contains(key) && !self.spec(**key).is_data;
        let outputs = keys.iter().filter(is_output);
        self.graphs.push(Graph {
            outputs: outputs.copied().collect(),
            keys,
        });
    }

    /// Has some tasks wait for others, as tasks do that wait for an event or a lock.
    pub(crate) fn add_waits(&mut self, random: &mut Random, traits: &Traits) {
        for index in 0..self.specs.len() {
            let (key, other) = (Key(index as u32), random.index(self.specs.len()));
            let can_wait = !self.specs[index].is_data
                && self.specs[index].habit == Habit::Plain
                && self.specs[index].part.is_none();
            let can_set = !self.specs[other].is_data && !self.specs[other].lineage.contains(&key);
            if random.chance(traits.waiting) && can_wait && can_set {
                self.specs[index].habit = Habit::Waits(Key(other as u32));
            }
        }
    }

    /// Has some tasks do more than return a value, as the transfers of a shuffle do.
    pub(crate) fn add_effects(&mut self, random: &mut Random, percent: u64) {
        for (number, spec) in self.specs.iter_mut().enumerate() {
            let has_effects = random.chance(percent) && !spec.is_data && !spec.is_actor;
            if spec.part.is_none() {
                spec.has_effects = has_effects;
                spec.lasts = has_effects && number % 3 == 0;
            }
        }
    }

    /// The keys whose tasks do that.
    pub(crate) fn with_effects(&self) -> BTreeSet<Key> {
        let keys = (0..).map(Key).zip(&self.specs);
        let with_effects = keys.filter(|(_, spec)| spec.has_effects);
        with_effects.map(|(key, _)| key).collect()
    }

    /// The keys of tasks whose effects survive the worker.
    pub(crate) fn with_lasting_effects(&self) -> BTreeSet<Key> {
        let keys = (0..).map(Key).zip(&self.specs);
        let lasting = keys.filter(|(_, spec)| spec.lasts);
        lasting.map(|(key, _)| key).collect()
    }

    fn keys_from(&self, first: usize) -> Vec<Key> {
        (first..self.specs.len()).map(|n| Key(n as u32)).collect()
    }

    fn add(&mut self, inputs: Vec<Key>, random: &mut Random, traits: &Traits) -> Key {
        self.add_kind(Kind::Task, inputs, random, traits)
    }

    fn add_kind(
        &mut self,
        kind: Kind,
        mut inputs: Vec<Key>,
        random: &mut Random,
        traits: &Traits,
    ) -> Key {
        let key = Key(self.specs.len() as u32);
        let (is_data, is_actor) = (kind == Kind::Data, kind == Kind::Actor);
        for (extra, chance) in [(self.data, 30), (self.actor, 20)] {
            if let Some(extra) = extra
                && kind == Kind::Task
                && !inputs.contains(&extra)
                && random.chance(chance)
            {
                inputs.push(extra);
            }
        }
        // Two actors need not be in one place: nobody reads both.
        let own = self.actor;
        inputs.retain(|&input| Some(input) == own || !self.spec(input).is_actor);
        let reads_actor = inputs.iter().any(|&input| self.spec(input).is_actor);
        let value = inputs.iter().map(|&input| self.spec(input).value);
        let value = evaluate(key, value);
        let mut lineage = BTreeSet::from([key]);
        for &input in &inputs {
            lineage.extend(&self.spec(input).lineage);
        }
        let raises = match random.below(100) {
            n if is_data || n >= traits.raising => Raises::Never,
            n if n % 3 == 0 => Raises::Always,
            _ => Raises::Times(random.between(1, 3) as u32),
        };
        let habit = match random.below(100) {
            n if n >= traits.seceding => Habit::Plain,
            n if n % 3 == 0 => Habit::Leaves,
            _ => Habit::Secedes,
        };
        let is_free = !is_data && !is_actor && !reads_actor;
        let constrained = is_free && random.chance(traits.constrained);
        let gives_back = match !is_data && random.chance(traits.giving_back) {
            true => random.between(1, 2) as u32,
            false => 0,
        };
        let nbytes = match random.chance(traits.small) {
            true => random.between(8, INLINE as u64),
            false => random.between(INLINE as u64 + 1, traits.largest),
        };
        self.specs.push(Spec {
            is_data,
            is_actor,
            is_immovable: kind == Kind::Task
                && !is_small(nbytes, value)
                && random.chance(traits.immovable),
            has_effects: false,
            lasts: false,
            part: None,
            inputs,
            nbytes,
            duration: random.micros(1, traits.longest),
            function: Symbol(random.below(3) as u32),
            raises,
            gives_back,
            retries: random.pick(&[0, 0, 1, 3]),
            habit,
            priority: random.pick(&[0, 0, 0, 1, -1]),
            constraint: match constrained {
                true => 1 + random.below(traits.constraints.len() as u64) as u32,
                false => 0,
            },
            value,
            lineage,
        });
        key
    }

    /// An earlier key, mostly of the same graph.
    fn earlier(&self, first: usize, random: &mut Random) -> Option<Key> {
        let here = self.specs.len();
        let from = match random.chance(90) {
            true => first,
            false => 0,
        };
        let found = (from < here).then(|| Key(random.between(from as u64, here as u64 - 1) as u32));
        found.filter(|&key| !self.spec(key).is_within_shuffle())
    }

    fn chains(&mut self, size: u64, random: &mut Random, traits: &Traits) {
        for _ in 0..random.between(1, 3) {
            let mut last = None;
            for _ in 0..size.div_ceil(2) {
                last = Some(self.add(last.into_iter().collect(), random, traits));
            }
        }
    }

    /// A reduction.
    fn tree(&mut self, size: u64, random: &mut Random, traits: &Traits) {
        let mut level: Vec<_> = (0..size)
            .map(|_| self.add(vec![], random, traits))
            .collect();
        let arity = random.between(2, 4) as usize;
        while level.len() > 1 {
            let groups: Vec<_> = level.chunks(arity).map(<[Key]>::to_vec).collect();
            level.clear();
            for group in groups {
                level.push(self.add(group, random, traits));
            }
        }
    }

    /// Each task reads its neighbours in the layer before.
    fn layers(&mut self, size: u64, random: &mut Random, traits: &Traits) {
        let width = size.div_ceil(3) as usize;
        let mut last: Vec<Key> = Vec::new();
        for _ in 0..random.between(2, 4) {
            let mut layer = Vec::new();
            for position in 0..width {
                let near = position.saturating_sub(1)..(position + 2).min(last.len());
                let inputs = last.get(near).map(<[Key]>::to_vec).unwrap_or_default();
                layer.push(self.add(inputs, random, traits));
            }
            last = layer;
        }
    }

    /// Each task of the second half reads all of the first.
    fn exchange(&mut self, size: u64, random: &mut Random, traits: &Traits) {
        let width = size.min(12).div_ceil(2);
        let first = self.specs.len();
        for _ in 0..width {
            self.add(vec![], random, traits);
        }
        let all = self.keys_from(first);
        for _ in 0..width {
            self.add(all.clone(), random, traits);
        }
    }

    fn anything(&mut self, size: u64, random: &mut Random, traits: &Traits) {
        let first = self.specs.len();
        for _ in 0..size {
            let inputs: BTreeSet<_> = (0..random.below(5))
                .filter_map(|_| self.earlier(first, random))
                .collect();
            self.add(inputs.into_iter().collect(), random, traits);
        }
    }
}

/// The value of a key whose task reads these values.
pub(crate) fn evaluate(key: Key, inputs: impl Iterator<Item = u64>) -> u64 {
    inputs.fold(mix(u64::from(key.0) + 1), |hash, input| {
        mix(hash.rotate_left(7) ^ input)
    })
}

/// What a task is told to run.
pub(crate) fn recipe(key: Key) -> Bytes {
    Bytes::copy_from_slice(&key.0.to_le_bytes())
}

/// The inverse of [`recipe`].
pub(crate) fn key_of(recipe: &[u8]) -> Option<Key> {
    Some(Key(u32::from_le_bytes(recipe.try_into().ok()?)))
}

/// The key of a task that is told to run so: its own key goes before what the client gave.
pub(crate) fn key_of_task(recipe: &[u8]) -> Option<Key> {
    let mut reader = Reader::new(recipe);
    reader.blob().ok()?;
    key_of(&recipe[recipe.len() - reader.remaining()..])
}

/// A value, as it travels.
pub(crate) fn encode(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_le_bytes())
}

/// The inverse of [`encode`].
pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
