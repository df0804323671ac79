//! Graphs that clients submit, in batches, and the values that no task of them makes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use treadle_client::{Contained, Content, Destination, Input, NewTask, Submission};

use super::{Planned, Sending, Standing, encode_key};
use crate::universe::{Key, encode, recipe};
use crate::world::{Item, World};

impl World {
    pub(super) fn submit(&mut self, client: usize) -> Result<(), String> {
        let graph = self.kernel.random.index(self.plan.universe.graphs.len());
        let outputs = self.plan.universe.graphs[graph].outputs.clone();
        let share = self.kernel.random.pick(&[20, 50, 100]);
        let mut outputs = self.kernel.random.some(&outputs, share);
        if self.kernel.random.chance(10) {
            // Somebody keeps a future of something in the middle.
            let keys = self.plan.universe.graphs[graph].keys.clone();
            outputs.extend(self.kernel.random.some(&keys, 20));
        }
        outputs.retain(|&key| {
            let spec = self.plan.universe.spec(key);
            !spec.is_data && !spec.is_transfer()
        });
        let mut submission = self.clients[client].core.submission();
        let (tasks, external) = self.closure(client, &outputs, &mut submission)?;
        if tasks.is_empty() {
            return self.client_does(client, |core, effects| {
                let abandoned = core.abandon(submission, effects);
                abandoned.map(drop).map_err(|error| error.to_string())
            })?;
        }
        let mut readers = BTreeMap::new();
        for &key in &tasks {
            for &input in &self.plan.universe.spec(key).inputs {
                *readers.entry(input).or_insert(0) += 1;
            }
        }
        let count = match self.kernel.random.chance(self.plan.habits.batches) {
            true => self.kernel.random.between(2, 5) as usize,
            false => 1,
        };
        let size = tasks.len().div_ceil(count);
        self.register_shuffles(&tasks, &mut submission);
        let outputs: BTreeSet<_> = outputs.into_iter().collect();
        let state = &mut self.clients[client];
        let mut inputs = BTreeMap::new();
        for &key in &external {
            state.future(key);
            let input = state.core.read(&mut submission, &encode_key(key));
            inputs.insert(key, input.ok_or(format!("{key:?} is not known"))?);
        }
        let numbers = (0..).map(Input::Task);
        inputs.extend(tasks.iter().copied().zip(numbers));
        let mut batches = VecDeque::new();
        for part in tasks.chunks(size) {
            let plan = |&key| {
                let is_wanted = outputs.contains(&key);
                if is_wanted {
                    state.future(key);
                }
                let read = self.plan.universe.spec(key).inputs.iter();
                Planned {
                    key,
                    inputs: read.map(|input| inputs[input]).collect(),
                    readers: readers.get(&key).copied().unwrap_or(0),
                    is_wanted,
                }
            };
            batches.push_back(part.iter().map(plan).collect());
        }
        state.submissions.push(Sending {
            submission,
            batches,
            external,
        });
        self.kernel.schedule(Duration::ZERO, Item::Batch(client));
        Ok(())
    }

    /// The tasks of a submission for these outputs, inputs first, and the keys that it refers to
    /// through futures.
    fn closure(
        &mut self,
        client: usize,
        outputs: &[Key],
        submission: &mut Submission<Key>,
    ) -> Result<(Vec<Key>, Vec<Key>), String> {
        let mut tasks = BTreeSet::new();
        let mut external = BTreeSet::new();
        let mut stack = outputs.to_vec();
        let unsent = self.clients[client].unsent();
        while let Some(key) = stack.pop() {
            if tasks.contains(&key) || external.contains(&key) {
                continue;
            }
            let standing = self.clients[client].standing(key);
            let lives = matches!(
                standing,
                Some(Standing::Pending | Standing::Finished { .. })
            );
            if self.plan.universe.spec(key).is_data {
                if !lives {
                    self.put(client, key, submission)?;
                }
                external.insert(key);
            } else if lives
                && !outputs.contains(&key)
                && !unsent.contains(&key)
                && self.kernel.random.chance(50)
            {
                external.insert(key);
            } else {
                tasks.insert(key);
                stack.extend(&self.plan.universe.spec(key).inputs);
            }
        }
        Ok((tasks.into_iter().collect(), external.into_iter().collect()))
    }

    /// Sends the next batch of one of the submissions that are not sent yet.
    pub(crate) fn next_batch(&mut self, client: usize) -> Result<(), String> {
        if self.clients[client].has_left || self.clients[client].submissions.is_empty() {
            return Ok(());
        }
        let state = &mut self.clients[client];
        let index = self.kernel.random.index(state.submissions.len());
        let mut sending = state.submissions.remove(index);
        for task in sending.batches.pop_front().into_iter().flatten() {
            let spec = self.plan.universe.spec(task.key);
            let options = self.plan.options(spec);
            let new = NewTask {
                key: &encode_key(task.key),
                recipe: &recipe(task.key),
                inputs: &task.inputs,
                definitions: &self.clients[client].numbers_of(&spec.definitions()),
                readers: task.readers,
                options: sending.submission.options(options),
            };
            let owner = task.is_wanted.then_some(task.key);
            sending.submission.add(&new, owner);
        }
        let definitions = self.clients[client].definitions();
        let sent = if sending.batches.is_empty() {
            let submission = sending.submission;
            self.client_does(client, |core, effects| {
                core.finish(submission, definitions, effects)
            })?
        } else {
            let submission = &mut sending.submission;
            let sent = self.client_does(client, |core, effects| {
                core.submit(submission, definitions, effects)
            })?;
            self.clients[client].submissions.insert(index, sending);
            sent
        };
        sent.map_err(|error| error.to_string())?;
        let pause = self.kernel.random.micros(0, 100_000);
        self.kernel.schedule(pause, Item::Batch(client));
        Ok(())
    }

    fn put(
        &mut self,
        client: usize,
        key: Key,
        submission: &mut Submission<Key>,
    ) -> Result<(), String> {
        let spec = self.plan.universe.spec(key);
        let is_small = spec.is_small();
        let content = Content {
            nbytes: spec.nbytes,
            class: Bytes::new(),
            value: match is_small {
                true => Contained::Inline(encode(spec.value)),
                false => Contained::Frames(0, Vec::new()),
            },
        };
        let keeps = !is_small && self.kernel.random.chance(self.plan.habits.keeps);
        let state = &mut self.clients[client];
        state.another_future(key);
        if !is_small {
            state.putting.insert(key);
        }
        let encoded = encode_key(key);
        let put = self.client_does(client, |core, effects| {
            if keeps {
                core.constant(submission, &encoded, content, |_, _, _| true, effects)?;
                return core.watch(&encoded, key, effects);
            }
            core.put(&encoded, key, content, &Destination::default(), effects)
        })?;
        put.map(drop).map_err(|error| error.to_string())
    }
}
