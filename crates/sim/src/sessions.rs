//! What clients tell the scheduler, translated into its terms: tasks for futures and keys.

use treadle_scheduler::{Event, Submission};
use treadle_types::{ClientId, Options, TaskId};

use crate::client::Batch;
use crate::network::{Message, News};
use crate::server::Session;
use crate::universe::{Key, encode, recipe};
use crate::world::World;

impl World {
    pub(crate) fn told_by_client(
        &mut self,
        client: ClientId,
        message: Message,
    ) -> Result<(), String> {
        let Some(session) = self.server.clients.get_mut(&client) else {
            return Ok(());
        };
        let known = |session: &Session, futures: &[u32]| -> Vec<TaskId> {
            let tasks = futures.iter().map(|future| session.tasks.get(future));
            tasks.flatten().copied().collect()
        };
        match message {
            Message::Submit(batch) => self.submitted(client, batch),
            Message::Put(future, key, kept) => self.put_by(client, future, key, kept),
            Message::Unkept(number) => {
                let mut kept = session.kept.iter();
                let kept = kept.find_map(|(&task, &put)| (put == number).then_some(task));
                if let Some(task) = kept {
                    session.kept.remove(&task);
                    self.oracle.unkept.insert(self.server.keys[&task]);
                }
                let tasks = kept.into_iter().collect();
                self.core_event(Event::Unkept { client, tasks })
            }
            Message::Want(future, key) => {
                let Some(&task) = self.server.tasks.get(&key) else {
                    let connection = session.connection;
                    let news = Message::News(future, News::Cancelled);
                    self.oracle.cancelled.insert(key);
                    self.send_from_server(connection, news);
                    return Ok(());
                };
                self.bind(client, future, task);
                let tasks = vec![task];
                self.core_event(Event::Want { client, tasks })
            }
            Message::Unwant(futures) => {
                let tasks = known(session, &futures);
                for task in &tasks {
                    session.futures.remove(task);
                    self.oracle.asks(client, *task);
                }
                for future in &futures {
                    session.tasks.remove(future);
                }
                self.core_event(Event::Unwant { client, tasks })
            }
            Message::Cancel(futures, force) => {
                let tasks = known(session, &futures);
                self.core_event(Event::Cancel {
                    client,
                    tasks,
                    force,
                })
            }
            Message::Retry(futures) => {
                let tasks = known(session, &futures);
                for &task in &tasks {
                    self.oracle.asks(client, task);
                }
                self.core_event(Event::Retry { client, tasks })
            }
            Message::Replicate(future, copies) => {
                let tasks = known(session, &[future]);
                let among = match self.kernel.random.chance(50) {
                    true => Vec::new(),
                    false => self.kernel.random.some(&self.server.there(), 50),
                };
                self.core_event(Event::Replicate {
                    tasks,
                    copies,
                    among,
                })
            }
            Message::Move(future) => {
                let task = session.tasks.get(&future).copied();
                let there = self.server.there();
                match task {
                    Some(task) if !there.is_empty() => {
                        let holders = self.server.holders(task);
                        let from = holders.first().copied();
                        let to = self.kernel.random.pick(&there);
                        match from {
                            Some(from) => self.core_event(Event::Move { task, from, to }),
                            None => Ok(()),
                        }
                    }
                    _ => Ok(()),
                }
            }
            Message::Closed => {
                self.server.clients.remove(&client);
                self.core_event(Event::ClientLeft(client))
            }
            _ => Err("a client says what only workers say".into()),
        }
    }

    /// A client has a future of a task.
    fn bind(&mut self, client: ClientId, future: u32, task: TaskId) {
        self.oracle.asks(client, task);
        if let Some(session) = self.server.clients.get_mut(&client) {
            session.tasks.insert(future, task);
            session.futures.insert(task, future);
        }
    }

    fn submitted(&mut self, client: ClientId, batch: Batch) -> Result<(), String> {
        let session = self.server.clients.get(&client);
        if session.is_some_and(|session| session.refused.contains(&batch.number)) {
            self.cancel_wanted(client, &batch);
            return Ok(());
        }
        let own: Vec<_> = batch.tasks.iter().map(|task| task.0).collect();
        for &key in &own {
            for input in &self.plan.universe.spec(key).inputs {
                if !self.server.tasks.contains_key(input) && !own.contains(input) {
                    return self.refuse(client, &batch, *input);
                }
            }
        }
        let mut submission = Submission {
            client,
            number: batch.number,
            last: batch.last,
            offsets: vec![0],
            constraints: self.plan.constraints.clone(),
            ..Submission::default()
        };
        for &(key, readers, rank) in &batch.tasks {
            let (task, _) = self.server.task(key);
            let spec = self.plan.universe.spec(key);
            submission.tasks.push(task);
            submission.readers.push(readers);
            submission.ranks.push(rank);
            submission.functions.push(spec.function);
            submission.recipes.push(recipe(key));
            submission.options.push(submission.option_sets.len() as u16);
            submission.option_sets.push(Options {
                priority: spec.priority,
                retries: spec.retries,
                constraint: spec.constraint,
                actor: spec.is_actor,
                effects: spec.has_effects,
            });
        }
        for key in &own {
            let inputs = &self.plan.universe.spec(*key).inputs;
            let inputs = inputs.iter().map(|input| self.server.tasks[input]);
            submission.inputs.extend(inputs);
            submission.offsets.push(submission.inputs.len() as u32);
        }
        for &(future, key) in &batch.wanted {
            let task = self.server.tasks[&key];
            submission.wanted.push(task);
            self.bind(client, future, task);
        }
        self.core_event(Event::Submit(submission))
    }

    /// A batch refers to a task that is not known any more: the futures of the submission are
    /// cancelled.
    fn refuse(&mut self, client: ClientId, batch: &Batch, input: Key) -> Result<(), String> {
        let lineage = &self.plan.universe.spec(input).lineage;
        let is_excused = self.oracle.has_restarted || !self.oracle.cancelled.is_disjoint(lineage);
        if !is_excused {
            return Err(format!(
                "{input:?} is forgotten, and {client:?} refers to it"
            ));
        }
        self.kernel
            .tell(|| format!("{input:?} is unknown: the submission is refused"));
        if let Some(session) = self.server.clients.get_mut(&client) {
            session.refused.insert(batch.number);
        }
        self.cancel_wanted(client, batch);
        // What came of it before waits for no more readers.
        self.core_event(Event::Submit(Submission {
            client,
            number: batch.number,
            last: true,
            offsets: vec![0],
            ..Submission::default()
        }))
    }

    fn cancel_wanted(&mut self, client: ClientId, batch: &Batch) {
        let connection = self.server.clients[&client].connection;
        for &(future, key) in &batch.wanted {
            self.oracle.cancelled.insert(key);
            let news = Message::News(future, News::Cancelled);
            self.send_from_server(connection, news);
        }
    }

    fn put_by(
        &mut self,
        client: ClientId,
        future: u32,
        key: Key,
        kept: bool,
    ) -> Result<(), String> {
        let (task, _) = self.server.task(key);
        self.bind(client, future, task);
        if let Some(session) = self.server.clients.get_mut(&client)
            && kept
        {
            session.kept.insert(task, future);
        }
        let spec = self.plan.universe.spec(key);
        let is_small = spec.is_small();
        let put = Event::Put {
            client,
            task,
            nbytes: spec.nbytes,
            inline: is_small.then(|| encode(spec.value)),
            class: bytes::Bytes::new(),
            holders: Vec::new(),
            kept,
        };
        self.core_event(put)?;
        if !is_small {
            self.place(client, key);
        }
        Ok(())
    }

    /// Tells a client where to bring a value.
    pub(crate) fn place(&mut self, client: ClientId, key: Key) {
        let there = self.server.there();
        let (Some(session), Some(&task)) = (
            self.server.clients.get(&client),
            self.server.tasks.get(&key),
        ) else {
            return;
        };
        if there.is_empty() {
            self.server.unplaced.push((client, key));
            return;
        }
        let connection = session.connection;
        let object = self.server.object(task);
        let mut workers = vec![self.kernel.random.pick(&there)];
        let other = self.kernel.random.pick(&there);
        if self.kernel.random.chance(30) && !workers.contains(&other) {
            workers.push(other);
        }
        self.send_from_server(connection, Message::Place(key, object, workers));
    }
}
