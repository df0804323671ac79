//! Tasks for the scheduler, in batches that leave while later ones are still being encoded.

use alloc::vec::Vec;
use core::ops::Range;

use bytes::Bytes;
use treadle_messages::{Batch, Definition, FromClient, Registration, TaskOptions};
use treadle_types::value::put_varint;

use crate::effect::Effects;
use crate::error::Exhausted;
use crate::kept::IsIntact;
use crate::keys::{Keys, Known};
use crate::put::{Content, Destination};
use crate::state::Core;

/// The first batch leaves when it has so many bytes: workers can begin.
const FIRST: usize = 4 * 1024;
/// The others.
const FULL: usize = 32 * 1024;
/// Or so many tasks.
const TASKS: usize = 4096;

/// A value that a task reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Of a task of the same submission, by its number there; it was added before.
    Task(u32),
    /// Of a key that the client has futures of ([`Core::read`]), or a constant
    /// ([`Core::constant`]).
    Known(u32),
}

/// Set in an entry of `inputs` that is a local id already.
const KNOWN: u64 = 1 << 32;

#[derive(Debug)]
pub struct NewTask<'a> {
    /// Its key, encoded.
    pub key: &'a [u8],
    /// What to run; the key goes before it by itself.
    pub recipe: &'a [u8],
    /// What it reads, in the order of the recipe, each once.
    pub inputs: &'a [Input],
    /// The definitions that the recipe uses, its function first.
    pub definitions: &'a [u32],
    /// How many tasks of the submission read it.
    pub readers: u32,
    /// An index of [`Submission::options`].
    pub options: u32,
}

/// A submission in the making. Tasks are added in the planned order, each after those that it reads,
/// and numbered from 0.
///
/// [`Core::submit`] is to be called whenever [`Submission::is_full`], [`Core::finish`] at the end.
#[derive(Debug)]
pub struct Submission<T> {
    number: u32,
    /// By number of the task: its local id, once its batch has left.
    ids: Vec<u32>,
    /// The number of the batch's first task.
    first: usize,
    option_sets: Vec<TaskOptions>,
    /// Shuffles that the scheduler has not been told of.
    registrations: Vec<Registration>,
    /// Ids that are needed until the submission is over.
    held: Vec<u32>,
    /// The keys, and the recipes, of the batch.
    keys: Vec<u8>,
    key_ends: Vec<usize>,
    recipes: Vec<u8>,
    recipe_ends: Vec<usize>,
    offsets: Vec<u32>,
    inputs: Vec<u64>,
    definition_offsets: Vec<u32>,
    definitions: Vec<u32>,
    readers: Vec<u32>,
    options: Vec<u32>,
    /// Numbers of wanted tasks of the batch, with what the application keeps of them.
    wanted: Vec<(u32, T)>,
    sent_any: bool,
}

impl<T> Submission<T> {
    fn new(number: u32) -> Self {
        Self {
            number,
            ids: Vec::new(),
            first: 0,
            option_sets: Vec::new(),
            registrations: Vec::new(),
            held: Vec::new(),
            keys: Vec::new(),
            key_ends: Vec::new(),
            recipes: Vec::new(),
            recipe_ends: Vec::new(),
            offsets: Vec::new(),
            inputs: Vec::new(),
            definition_offsets: Vec::new(),
            definitions: Vec::new(),
            readers: Vec::new(),
            options: Vec::new(),
            wanted: Vec::new(),
            sent_any: false,
        }
    }

    /// Options that tasks have; the index to say so with.
    pub fn options(&mut self, options: TaskOptions) -> u32 {
        self.option_sets.push(options);
        (self.option_sets.len() - 1) as u32
    }

    /// The options of an index.
    pub fn options_at(&self, index: u32) -> &TaskOptions {
        &self.option_sets[index as usize]
    }

    /// A shuffle whose tasks will be added: the scheduler hears of it before the next batch. Ranks are
    /// numbers of tasks.
    pub fn register(&mut self, mut registration: Registration) {
        registration.submission = self.number;
        self.registrations.push(registration);
    }

    /// Adds a task; `owner` is there if the application has futures of it. Returns its number.
    pub fn add(&mut self, task: &NewTask<'_>, owner: Option<T>) -> u32 {
        let number = (self.first + self.key_ends.len()) as u32;
        self.keys.extend_from_slice(task.key);
        self.key_ends.push(self.keys.len());
        // Workers, and the scheduler when it has forgotten the key, learn it from here.
        put_varint(task.key.len() as u64, &mut self.recipes);
        self.recipes.extend_from_slice(task.key);
        self.recipes.extend_from_slice(task.recipe);
        self.recipe_ends.push(self.recipes.len());
        self.inputs
            .extend(task.inputs.iter().map(|input| match *input {
                Input::Task(number) => u64::from(number),
                Input::Known(id) => u64::from(id) | KNOWN,
            }));
        self.offsets.push(self.inputs.len() as u32);
        self.definitions.extend_from_slice(task.definitions);
        self.definition_offsets.push(self.definitions.len() as u32);
        self.readers.push(task.readers);
        self.options.push(task.options);
        if let Some(owner) = owner {
            self.wanted.push((number, owner));
        }
        number
    }

    /// Whether it is time to send.
    pub fn is_full(&self) -> bool {
        let bytes = self.keys.len()
            + self.recipes.len()
            + 4 * (self.inputs.len() + self.definitions.len())
            + 8 * self.key_ends.len();
        let limit = if self.sent_any { FULL } else { FIRST };
        bytes >= limit || self.key_ends.len() >= TASKS
    }

    /// Names the keys, and makes the message.
    fn seal(
        &mut self,
        last: bool,
        keys: &mut Keys<T>,
        garbage: &mut Vec<T>,
    ) -> Result<Batch, Exhausted> {
        let count = self.key_ends.len();
        keys.check_room(count)?;
        let encoded = Bytes::from(core::mem::take(&mut self.keys));
        let recipes = Bytes::from(core::mem::take(&mut self.recipes));
        let first = keys.next_id();
        let mut new = Vec::with_capacity(count);
        let mut owners = self.wanted.drain(..).peekable();
        let mut wanted = Vec::with_capacity(owners.len());
        for (index, range) in ranges(&self.key_ends).enumerate() {
            let number = (self.first + index) as u32;
            let owner = owners.next_if(|(owned, _)| *owned == number);
            let key = &encoded[range.clone()];
            // With what the key is kept under, if it is.
            let (id, kept) = match (keys.find(key), owner) {
                (Some(id), owner) => {
                    let named = keys.named(id);
                    if let Some((_, owner)) = owner {
                        garbage.extend(keys.own(id, owner));
                        wanted.push(named);
                    }
                    (named, Some(id))
                }
                (None, Some((_, owner))) => {
                    new.push(encoded.slice(range));
                    let id = keys.add(key, Some(owner))?;
                    wanted.push(id);
                    (id, Some(id))
                }
                (None, None) => {
                    new.push(encoded.slice(range));
                    (keys.name()?, None)
                }
            };
            // A later batch may name it, also when the application does not need it any more.
            if let Some(kept) = kept.filter(|_| !last && self.readers[index] > 0) {
                keys.hold(kept);
                self.held.push(kept);
            }
            self.ids.push(id);
        }
        drop(owners);
        let ids = &self.ids;
        let inputs = self.inputs.iter().map(|input| {
            if input & KNOWN != 0 {
                *input as u32
            } else {
                ids[*input as usize]
            }
        });
        let inputs = inputs.collect();
        let ranks = (self.first as u32..(self.first + count) as u32).collect();
        let with_zero = |ends: &mut Vec<u32>| {
            let mut offsets = Vec::with_capacity(ends.len() + 1);
            offsets.push(0);
            offsets.append(ends);
            offsets
        };
        let (options, option_sets) = self.options_of_batch();
        let batch = Batch {
            number: self.number,
            last,
            first,
            keys: new,
            tasks: self.ids[self.first..].to_vec(),
            offsets: with_zero(&mut self.offsets),
            inputs,
            readers: core::mem::take(&mut self.readers),
            ranks,
            definition_offsets: with_zero(&mut self.definition_offsets),
            definitions: core::mem::take(&mut self.definitions),
            recipes: ranges(&self.recipe_ends)
                .map(|range| recipes.slice(range))
                .collect(),
            options,
            option_sets,
            wanted,
        };
        self.first += count;
        self.key_ends.clear();
        self.recipe_ends.clear();
        self.inputs.clear();
        self.sent_any = true;
        Ok(batch)
    }
}

impl<T> Submission<T> {
    /// The options of the batch's tasks, and those that occur there.
    fn options_of_batch(&mut self) -> (Vec<u16>, Vec<TaskOptions>) {
        let mut sets = Vec::new();
        let mut indices: Vec<(u32, u16)> = Vec::new();
        let mut options = Vec::with_capacity(self.options.len());
        for index in self.options.drain(..) {
            let known = indices.binary_search_by_key(&index, |(index, _)| *index);
            let known = known.unwrap_or_else(|place| {
                indices.insert(place, (index, sets.len() as u16));
                sets.push(self.option_sets[index as usize].clone());
                place
            });
            options.push(indices[known].1);
        }
        (options, sets)
    }
}

fn ranges(ends: &[usize]) -> impl Iterator<Item = Range<usize>> + '_ {
    ends.iter().scan(0, |start, end| {
        let range = *start..*end;
        *start = *end;
        Some(range)
    })
}

impl<T, V, A> Core<T, V, A> {
    /// Begins a submission.
    pub fn submission(&mut self) -> Submission<T> {
        self.submissions += 1;
        Submission::new(self.submissions - 1)
    }

    /// A key that the tasks that follow read, and that is needed until the submission is over; nothing
    /// where the client does not know it.
    pub fn read(&mut self, submission: &mut Submission<T>, key: &[u8]) -> Option<Input> {
        let id = self.keys.find(key)?;
        self.keys.hold(id);
        submission.held.push(id);
        Some(Input::Known(self.keys.named(id)))
    }

    /// As [`Core::read`], for a key that has a value or is about to get one: no task need make it.
    pub fn read_coming(&mut self, submission: &mut Submission<T>, key: &[u8]) -> Option<Input> {
        match self.keys.by_key(key)?.known {
            Known::Failed | Known::Unknown => None,
            _ => self.read(submission, key),
        }
    }

    /// A large constant that the tasks that follow read, under a key made of its content. It is sent
    /// once, and needed until the submission is finished or abandoned. Nothing can compute it again:
    /// its frames are kept for as long as tasks may need them, in case that the worker that has it is
    /// lost; `is_intact` says then whether they are what they were.
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn constant(
        &mut self,
        submission: &mut Submission<T>,
        key: &[u8],
        content: Content,
        is_intact: IsIntact,
        effects: &mut Effects,
    ) -> Result<Input, Exhausted> {
        let anywhere = Destination::anywhere();
        let (id, _) = self.put_as(key, None, content, &anywhere, Some(is_intact), effects)?;
        submission.held.push(id);
        Ok(Input::Known(self.keys.named(id)))
    }

    /// Sends the batch; `definitions` that have not been sent go ahead. Returns what the application
    /// kept of keys that have new owners.
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn submit(
        &mut self,
        submission: &mut Submission<T>,
        definitions: impl IntoIterator<Item = Definition>,
        effects: &mut Effects,
    ) -> Result<Vec<T>, Exhausted> {
        self.send_batch(submission, false, definitions, effects)
    }

    /// Sends the rest.
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn finish(
        &mut self,
        mut submission: Submission<T>,
        definitions: impl IntoIterator<Item = Definition>,
        effects: &mut Effects,
    ) -> Result<Vec<T>, Exhausted> {
        let garbage = self.send_batch(&mut submission, true, definitions, effects);
        for id in submission.held {
            self.release_hold(id, effects);
        }
        garbage
    }

    /// Gives a submission up. What was sent of it runs if somebody wants it. Returns what the
    /// application kept of keys that were not sent.
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn abandon(
        &mut self,
        submission: Submission<T>,
        effects: &mut Effects,
    ) -> Result<Vec<T>, Exhausted> {
        let owners = submission.wanted.into_iter().map(|(_, owner)| owner);
        let mut garbage: Vec<T> = owners.collect();
        let rest = Submission {
            sent_any: submission.sent_any,
            held: submission.held,
            ..Submission::new(submission.number)
        };
        if rest.sent_any {
            garbage.extend(self.finish(rest, [], effects)?);
        } else {
            for id in rest.held {
                self.release_hold(id, effects);
            }
        }
        Ok(garbage)
    }

    fn send_batch(
        &mut self,
        submission: &mut Submission<T>,
        last: bool,
        definitions: impl IntoIterator<Item = Definition>,
        effects: &mut Effects,
    ) -> Result<Vec<T>, Exhausted> {
        if self.is_over {
            // Nobody would make what the batch names.
            let owners = submission.wanted.drain(..);
            return Ok(owners.map(|(_, owner)| owner).collect());
        }
        let mut garbage = Vec::new();
        for definition in definitions {
            self.send(FromClient::Define(definition), effects);
        }
        let batch = submission.seal(last, &mut self.keys, &mut garbage)?;
        for registration in submission.registrations.drain(..) {
            self.keys.count_losses();
            self.send(FromClient::Register(registration), effects);
        }
        self.send(FromClient::Submit(batch), effects);
        Ok(garbage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: u32) -> Submission<()> {
        let mut submission = Submission::new(0);
        for number in 0..count {
            let task = NewTask {
                key: &number.to_le_bytes(),
                recipe: b"",
                inputs: &[],
                definitions: &[],
                readers: 0,
                options: 0,
            };
            submission.add(&task, Some(()));
        }
        submission.options(TaskOptions::default());
        submission
    }

    #[test]
    fn a_batch_for_which_there_are_no_names_left_leaves_nothing_behind() {
        let mut keys = Keys::after(u32::MAX - 5);
        let mut garbage = Vec::new();
        let refused = of(6).seal(true, &mut keys, &mut garbage);
        assert!(matches!(refused, Err(Exhausted)));
        // A key of it would be taken for one that is under way.
        assert_eq!((keys.len(), keys.next_id()), (0, u32::MAX - 5));
        let last = of(5).seal(true, &mut keys, &mut garbage).unwrap();
        assert_eq!(last.tasks.last(), Some(&(u32::MAX - 1)));
        let refused = of(6).seal(true, &mut keys, &mut garbage);
        assert!(matches!(refused, Err(Exhausted)));
    }
}
