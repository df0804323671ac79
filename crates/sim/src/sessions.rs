//! What clients tell the scheduler, translated into its terms: tasks for local ids and keys.

use treadle_messages::{self as messages, Answer, Call, FromClient, Standing, ToClient};
use treadle_scheduler::{Event, Submission};
use treadle_types::{ClientId, Options, TaskId, Value, WorkerId};

use crate::client::decode_key;
use crate::network::Message;
use crate::server::Session;
use crate::universe::{Key, encode, recipe};
use crate::world::World;

/// A part of a submission, in keys.
struct Batch {
    number: u32,
    last: bool,
    /// The tasks, each with how many of the submission read it, and its rank.
    tasks: Vec<(Key, u32, u32)>,
    /// The local ids of the tasks that the client has futures of.
    wanted: Vec<(u32, Key)>,
}

impl Session {
    /// The client names keys.
    fn name<'a>(
        &mut self,
        first: u32,
        keys: impl IntoIterator<Item = &'a bytes::Bytes>,
    ) -> Result<(), String> {
        for (id, key) in (first..).zip(keys) {
            if id < self.next {
                return Err(format!("{id} is used twice"));
            }
            self.next = id + 1;
            let key = decode_key(key).ok_or("a key is none")?;
            self.keys.insert(id, key);
        }
        Ok(())
    }

    /// The key of an id that the client has not released.
    fn key(&self, id: u32) -> Result<Key, String> {
        let key = self.keys.get(&id).copied();
        key.ok_or(format!("a client refers to {id}, which it has released"))
    }

    /// The tasks that the client wants under these ids.
    fn wanted(&self, ids: &[u32]) -> Vec<TaskId> {
        let tasks = ids
            .iter()
            .filter_map(|id| Some((*id, *self.tasks.get(id)?)));
        let wanted = tasks.filter(|(id, task)| self.futures.get(task) == Some(id));
        wanted.map(|(_, task)| task).collect()
    }

    /// A batch in keys; it says of its tasks what `inputs_of` says.
    fn read<'a>(
        &mut self,
        batch: &messages::Batch,
        inputs_of: impl Fn(Key) -> &'a [Key],
    ) -> Result<Batch, String> {
        self.name(batch.first, &batch.keys)?;
        let mut tasks = Vec::new();
        for (index, &id) in batch.tasks.iter().enumerate() {
            let key = self.key(id)?;
            let inputs = batch.offsets[index] as usize..batch.offsets[index + 1] as usize;
            let inputs = batch.inputs[inputs].iter().map(|&id| self.key(id));
            let inputs: Vec<Key> = inputs.collect::<Result<_, _>>()?;
            if inputs != inputs_of(key) {
                return Err(format!("a batch says that {key:?} reads {inputs:?}"));
            }
            tasks.push((key, batch.readers[index], batch.ranks[index]));
        }
        let wanted = batch.wanted.iter().map(|&id| Ok((id, self.key(id)?)));
        Ok(Batch {
            number: batch.number,
            last: batch.last,
            tasks,
            wanted: wanted.collect::<Result<_, String>>()?,
        })
    }
}

impl World {
    pub(crate) fn told_by_client(
        &mut self,
        client: ClientId,
        message: Message,
    ) -> Result<(), String> {
        if !self.server.clients.contains_key(&client) {
            return Ok(());
        }
        match message {
            Message::Client(message) => self.asked_by_client(client, *message),
            Message::Replicate(key, copies) => {
                let task = self.wanted_task(client, key);
                let among = match self.kernel.random.chance(50) {
                    true => Vec::new(),
                    false => self.kernel.random.some(&self.server.there(), 50),
                };
                self.core_event(Event::Replicate {
                    tasks: task.into_iter().collect(),
                    copies,
                    among,
                })
            }
            Message::Move(key) => {
                let task = self.wanted_task(client, key);
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

    /// The task of a key that a client has a future of.
    fn wanted_task(&self, client: ClientId, key: Key) -> Option<TaskId> {
        let &task = self.server.tasks.get(&key)?;
        let session = self.server.clients.get(&client)?;
        session.futures.contains_key(&task).then_some(task)
    }

    fn asked_by_client(&mut self, client: ClientId, message: FromClient) -> Result<(), String> {
        let Some(session) = self.server.clients.get_mut(&client) else {
            return Ok(());
        };
        match message {
            FromClient::Submit(batch) => {
                let universe = &self.plan.universe;
                let batch = session.read(&batch, |key| &universe.spec(key).inputs[..])?;
                self.submitted(client, batch)
            }
            FromClient::Put { id, key, kept, .. } => {
                session.name(id, [&key])?;
                let key = session.key(id)?;
                self.put_by(client, id, key, kept)
            }
            FromClient::Unkept(names) => {
                let mut tasks = Vec::new();
                for name in names {
                    let mut kept = session.kept.iter();
                    let kept = kept.find_map(|(&task, &put)| (put == name).then_some(task));
                    if let Some(task) = kept {
                        session.kept.remove(&task);
                        self.oracle.unkept.insert(self.server.keys[&task]);
                        tasks.push(task);
                    }
                }
                self.core_event(Event::Unkept { client, tasks })
            }
            FromClient::Want { first, keys } => {
                session.name(first, &keys)?;
                let key = session.key(first)?;
                let Some(&task) = self.server.tasks.get(&key) else {
                    self.oracle.cancelled.insert(key);
                    self.notice(client, first, Standing::Unknown);
                    return Ok(());
                };
                self.bind(client, first, task);
                let tasks = vec![task];
                self.core_event(Event::Want { client, tasks })
            }
            FromClient::Release(ids) => {
                let tasks = session.wanted(&ids);
                for task in &tasks {
                    session.futures.remove(task);
                    self.oracle.asks(client, *task);
                }
                for id in &ids {
                    session.key(*id)?;
                    session.tasks.remove(id);
                    session.keys.remove(id);
                }
                self.core_event(Event::Unwant { client, tasks })
            }
            FromClient::Cancel { ids, force, .. } => {
                // A client cancels what it cannot bring, too.
                for &id in &ids {
                    self.oracle.cancelled.insert(session.key(id)?);
                }
                let tasks = session.wanted(&ids);
                self.core_event(Event::Cancel {
                    client,
                    tasks,
                    force,
                })
            }
            FromClient::Retry(ids) => {
                let tasks = session.wanted(&ids);
                for &task in &tasks {
                    self.oracle.asks(client, task);
                }
                self.core_event(Event::Retry { client, tasks })
            }
            FromClient::Call(call) => self.called(client, &call),
            other => Err(format!("a client says {other:?}")),
        }
    }

    /// A client asks who has values, or whether workers have said that they do.
    fn called(&mut self, client: ClientId, call: &Call) -> Result<(), String> {
        let result = match (&*call.operation, Value::from_bytes(&call.argument)) {
            ("who_has", Ok(Value::List(keys))) => {
                let holders = |key: Value| {
                    let task =
                        decode_key(&key.to_bytes()).and_then(|key| self.server.tasks.get(&key));
                    let holders = task
                        .map(|&task| self.server.holders(task))
                        .unwrap_or_default();
                    let addresses = holders.into_iter().map(|at| Value::Str(address(at)));
                    (key, Value::List(addresses.collect()))
                };
                Value::Dict(keys.into_iter().map(holders).collect())
            }
            // What they say is on its way.
            ("held", Ok(Value::Dict(_))) => Value::None,
            other => return Err(format!("a client asks {other:?}")),
        };
        let answer = Answer {
            id: call.id,
            result: Ok(result.to_bytes().into()),
        };
        self.tell_client(client, ToClient::Answer(answer), true);
        Ok(())
    }

    /// Says something to a client.
    pub(crate) fn tell_client(&mut self, client: ClientId, message: ToClient, other_stream: bool) {
        if let Some(session) = self.server.clients.get(&client) {
            let (connection, message) = (session.connection, Message::ToClient(Box::new(message)));
            match other_stream {
                true => self.send_with_other_stream(connection, false, message),
                false => self.send_from_server(connection, message),
            }
        }
    }

    pub(crate) fn notice(&mut self, client: ClientId, id: u32, standing: Standing) {
        self.tell_client(client, ToClient::Notice { id, standing }, false);
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
        for &(id, key) in &batch.wanted {
            self.oracle.cancelled.insert(key);
            self.notice(client, id, Standing::Cancelled(bytes::Bytes::new()));
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
        let Some(&id) = session.futures.get(&task) else {
            return;
        };
        let object = self.server.object(task).to_u64();
        let mut workers = vec![self.kernel.random.pick(&there)];
        let other = self.kernel.random.pick(&there);
        if self.kernel.random.chance(30) && !workers.contains(&other) {
            workers.push(other);
        }
        let workers = workers.into_iter().map(|worker| worker.0.into()).collect();
        let place = ToClient::Place {
            id,
            object,
            workers,
        };
        self.tell_client(client, place, false);
    }
}

/// Where a worker is, for clients.
pub(crate) fn address(worker: WorkerId) -> String {
    format!("{worker:?}")
}
