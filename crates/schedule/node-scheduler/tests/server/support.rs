//! A scheduler, and clients of it that say what they are told to.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{
    Answer, Batch, Call, Definition, FromClient, Hello, Role, Standing, TaskOptions, ToClient,
};
use treadle_net::{Address, NetError, Peer, Poller, Wait};
use treadle_node_scheduler::{Options, Server};
use treadle_schedule_wire::NodeError;
use treadle_schedule_wire::{Link, Packet, introduce};
use treadle_types::value::put_varint;
use treadle_types::{ClientId, Value};

use crate::swarm::{PYTHON, Swarm};

/// Long enough for any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn secret() -> treadle_net::Options {
    treadle_net::Options {
        secret: Some(treadle_security::secret::Secret::new([7; 32]).unwrap()),
        shared_memory: false,
        ..treadle_net::Options::default()
    }
}

/// What a scheduler logs.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A scheduler with workers.
pub(crate) struct Cluster {
    // Ends first: workers that the scheduler sends away are no failure.
    pub(crate) swarm: Swarm,
    pub(crate) server: Server,
    pub(crate) log: Lines,
}

impl Cluster {
    pub(crate) fn new(workers: usize) -> Self {
        Self::with(workers, |_| {})
    }

    pub(crate) fn with(workers: usize, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options {
            net: secret(),
            ..Options::default()
        };
        change(&mut options);
        let log = Lines::default();
        let lines = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || lines.clone());
        let start = || Server::start(options).unwrap();
        let server = tracing::subscriber::with_default(subscriber.finish(), start);
        let swarm = Swarm::new(server.address(), &secret());
        swarm.add_many(workers);
        Self { swarm, server, log }
    }

    pub(crate) fn address(&self) -> &Address {
        self.server.address()
    }

    pub(crate) fn client(&self, name: &str) -> Client {
        Client::connect(self.address(), name, Role::Client).unwrap()
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.server.http_address().unwrap()
    }

    /// The token of the pages.
    pub(crate) fn token(&self) -> &str {
        self.server
            .http_link()
            .unwrap()
            .split_once("token=")
            .unwrap()
            .1
    }

    /// Looks until the log says something.
    pub(crate) fn wait_for_log(&self, part: &str) {
        let until = Instant::now() + LONG;
        while !self.log.text().contains(part) {
            assert!(Instant::now() < until, "{}", self.log.text());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn hello(name: &str, role: Role) -> Hello {
    Hello {
        role,
        name: name.into(),
        python: PYTHON.into(),
        version: "0".into(),
        info: Bytes::new(),
    }
}

pub(crate) fn wait_long<R>(act: impl FnOnce(&mut Wait<'_>) -> R) -> R {
    act(&mut Wait {
        deadline: Some(Instant::now() + LONG),
        interrupted: None,
    })
}

pub(crate) fn connect(address: &Address) -> Result<Peer, NetError> {
    wait_long(|wait| Peer::connect(address, &secret(), wait))
}

/// A task of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) key: String,
    pub(crate) what: &'static str,
    pub(crate) number: i64,
    pub(crate) inputs: Vec<String>,
    pub(crate) definitions: Vec<u32>,
    pub(crate) options: TaskOptions,
}

pub(crate) fn task(key: impl Into<String>, number: i64, inputs: &[&str]) -> Task {
    Task {
        key: key.into(),
        what: "small",
        number,
        inputs: inputs.iter().map(|input| (*input).to_owned()).collect(),
        definitions: vec![0],
        options: TaskOptions::default(),
    }
}

impl Task {
    pub(crate) fn large(self) -> Self {
        Self {
            what: "large",
            ..self
        }
    }

    pub(crate) fn raises(self) -> Self {
        Self {
            what: "raise",
            ..self
        }
    }

    fn recipe(&self, key: &[u8]) -> Bytes {
        let mut recipe = Vec::new();
        put_varint(key.len() as u64, &mut recipe);
        recipe.extend_from_slice(key);
        let definitions = self.definitions.iter();
        let definitions = definitions.map(|number| Value::Int((*number).into()));
        Value::Tuple(vec![
            Value::str(self.what),
            Value::Int(self.number),
            Value::List(definitions.collect()),
        ])
        .encode(&mut recipe);
        recipe.into()
    }
}

pub(crate) fn key(text: &str) -> Bytes {
    Value::Str(text.to_owned()).to_bytes().into()
}

/// A client.
pub(crate) struct Client {
    pub(crate) link: Link<ToClient, FromClient>,
    poller: Arc<Poller>,
    pub(crate) id: ClientId,
    ids: HashMap<String, u32>,
    names: HashMap<u32, String>,
    next: u32,
    submissions: u32,
    calls: u64,
    packets: Vec<Packet>,
    /// How each key last stood.
    pub(crate) standings: HashMap<String, Standing>,
    /// All else that came.
    pub(crate) others: VecDeque<ToClient>,
}

impl Client {
    pub(crate) fn connect(address: &Address, name: &str, role: Role) -> Result<Self, NodeError> {
        let peer = connect(address)?;
        let (id, _) = wait_long(|wait| introduce(&peer, &hello(name, role), wait))?;
        let poller = Poller::new()?;
        peer.watch(&poller, 0);
        let mut client = Self {
            link: Link::new(peer, 1 << 30),
            poller,
            id: ClientId(id),
            ids: HashMap::new(),
            names: HashMap::new(),
            next: 0,
            submissions: 0,
            calls: 0,
            packets: Vec::new(),
            standings: HashMap::new(),
            others: VecDeque::new(),
        };
        client.define(0, "inc");
        Ok(client)
    }

    pub(crate) fn say(&mut self, message: &FromClient) {
        self.link.push(message);
        self.link.flush().unwrap();
    }

    pub(crate) fn define(&mut self, number: u32, name: &str) {
        self.say(&FromClient::Define(Definition {
            client: ClientId(0),
            number,
            name: name.to_owned(),
            pickle: Bytes::copy_from_slice(name.as_bytes()),
        }));
    }

    /// An id for a key, and whether it is new.
    fn id(&mut self, key: &str) -> (u32, bool) {
        if let Some(id) = self.ids.get(key) {
            return (*id, false);
        }
        let id = self.next;
        self.next += 1;
        self.ids.insert(key.to_owned(), id);
        self.names.insert(id, key.to_owned());
        (id, true)
    }

    pub(crate) fn batch(&mut self, tasks: &[Task], wanted: &[&str], last: bool) -> Batch {
        let mut batch = Batch {
            number: self.submissions,
            last,
            first: self.next,
            offsets: vec![0],
            definition_offsets: vec![0],
            ..Batch::default()
        };
        for (rank, task) in tasks.iter().enumerate() {
            let encoded = key(&task.key);
            let (id, is_new) = self.id(&task.key);
            if is_new {
                batch.keys.push(encoded.clone());
            }
            batch.tasks.push(id);
            for input in &task.inputs {
                batch.inputs.push(self.ids[input]);
            }
            batch.offsets.push(batch.inputs.len() as u32);
            let readers = tasks
                .iter()
                .filter(|reader| reader.inputs.contains(&task.key));
            batch.readers.push(readers.count() as u32);
            batch.ranks.push(rank as u32);
            batch.definitions.extend(&task.definitions);
            batch
                .definition_offsets
                .push(batch.definitions.len() as u32);
            batch.recipes.push(task.recipe(&encoded));
            let known = batch
                .option_sets
                .iter()
                .position(|set| *set == task.options);
            batch
                .options
                .push(known.unwrap_or(batch.option_sets.len()) as u16);
            if known.is_none() {
                batch.option_sets.push(task.options.clone());
            }
        }
        batch.wanted = wanted.iter().map(|key| self.ids[*key]).collect();
        if last {
            self.submissions += 1;
        }
        batch
    }

    pub(crate) fn submit(&mut self, tasks: &[Task], wanted: &[&str]) {
        let batch = self.batch(tasks, wanted, true);
        self.say(&FromClient::Submit(batch));
        // What nobody has a future of is not kept.
        for task in tasks {
            if !wanted.contains(&task.key.as_str())
                && !self.standings.contains_key(&task.key)
                && let Some(id) = self.ids.remove(&task.key)
            {
                self.names.remove(&id);
            }
        }
        for key in wanted {
            self.standings
                .entry((*key).to_owned())
                .or_insert(Standing::Pending);
        }
    }

    pub(crate) fn want(&mut self, keys: &[&str]) {
        let first = self.next;
        for key in keys {
            assert!(self.id(key).1);
            self.standings.insert((*key).to_owned(), Standing::Pending);
        }
        self.say(&FromClient::Want {
            first,
            keys: keys.iter().map(|text| key(text)).collect(),
        });
    }

    pub(crate) fn put(&mut self, text: &str, value: i64, is_small: bool, copies: u32) -> u32 {
        let (id, is_new) = self.id(text);
        assert!(is_new);
        self.say(&FromClient::Put {
            id,
            key: key(text),
            nbytes: 28,
            inline: is_small.then(|| Value::Int(value).to_bytes().into()),
            class: Bytes::new(),
            workers: Vec::new(),
            copies,
            kept: false,
        });
        id
    }

    pub(crate) fn release(&mut self, keys: &[&str]) {
        let ids = keys.iter().map(|key| {
            self.standings.remove(*key);
            let id = self.ids.remove(*key).unwrap();
            self.names.remove(&id);
            id
        });
        let ids = ids.collect();
        self.say(&FromClient::Release(ids));
    }

    pub(crate) fn cancel(&mut self, keys: &[&str], force: bool) {
        let ids = keys.iter().map(|key| self.ids[*key]).collect();
        let reason = Value::Tuple(vec![Value::str("why"), Value::str("because")]);
        self.say(&FromClient::Cancel {
            ids,
            force,
            reason: reason.to_bytes().into(),
        });
    }

    pub(crate) fn retry(&mut self, keys: &[&str]) {
        let ids = keys.iter().map(|key| self.ids[*key]).collect();
        self.say(&FromClient::Retry(ids));
    }

    fn hear(&mut self, message: ToClient) {
        match message {
            ToClient::Notice { id, standing } => {
                if let Some(name) = self.names.get(&id) {
                    self.standings.insert(name.clone(), standing);
                }
            }
            other => self.others.push_back(other),
        }
    }

    /// Takes what is here. `false`: the connection is over.
    pub(crate) fn take(&mut self) -> bool {
        if self.link.flush().is_err() {
            return false;
        }
        let mut packets = std::mem::take(&mut self.packets);
        let alive = loop {
            match self.link.receive(16, &mut packets) {
                Ok(true) => {}
                Ok(false) => break true,
                Err(_) => break false,
            }
        };
        for packet in packets.drain(..) {
            for message in Link::<ToClient, FromClient>::decode(packet).unwrap() {
                self.hear(message.unwrap());
            }
        }
        self.packets = packets;
        alive
    }

    /// Waits until something is so. `None`: the connection ended before.
    pub(crate) fn wait_until<R>(
        &mut self,
        what: &str,
        mut so: impl FnMut(&mut Self) -> Option<R>,
    ) -> Option<R> {
        let until = Instant::now() + LONG;
        loop {
            let alive = self.take();
            if let Some(found) = so(self) {
                return Some(found);
            }
            if !alive {
                return None;
            }
            assert!(Instant::now() < until, "{what}: {:?}", self.standings);
            let mut wait = Wait {
                deadline: Some(Instant::now() + Duration::from_millis(50)),
                interrupted: None,
            };
            drop(self.poller.next(&mut wait));
        }
    }

    /// How a key stands, once it does not wait any more.
    pub(crate) fn result(&mut self, key: &str) -> Standing {
        let found = self.wait_until(key, |own| match own.standings.get(key) {
            None | Some(Standing::Pending) => None,
            Some(standing) => Some(standing.clone()),
        });
        found.expect("the connection ended")
    }

    /// The small value of a key.
    pub(crate) fn value(&mut self, key: &str) -> i64 {
        match self.result(key) {
            Standing::Finished {
                inline: Some(value),
                ..
            } => match Value::from_bytes(&value) {
                Ok(Value::Int(value)) => value,
                other => panic!("{other:?}"),
            },
            other => panic!("{key}: {other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, node: &str, operation: &str, argument: Value) -> u64 {
        self.calls += 1;
        let id = self.calls;
        self.say(&FromClient::Call(Call {
            id,
            node: node.to_owned(),
            operation: operation.to_owned(),
            argument: argument.to_bytes().into(),
        }));
        id
    }

    pub(crate) fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let found = self.wait_until("an answer", |own| {
            let is_it = |message: &ToClient| {
                matches!(message, ToClient::Answer(Answer { id: of, .. }) if *of == id)
            };
            let place = own.others.iter().position(is_it)?;
            match own.others.remove(place) {
                Some(ToClient::Answer(answer)) => Some(answer.result),
                _ => None,
            }
        });
        let value = |bytes: Bytes| Value::from_bytes(&bytes).unwrap();
        found
            .expect("the connection ended")
            .map(value)
            .map_err(value)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn call(
        &mut self,
        node: &str,
        operation: &str,
        argument: Value,
    ) -> Result<Value, Value> {
        let id = self.ask(node, operation, argument);
        self.answer(id)
    }

    /// Asks the scheduler.
    pub(crate) fn query(&mut self, operation: &str, entries: &[(&str, Value)]) -> Value {
        self.call("", operation, kwargs(entries)).unwrap()
    }

    /// A question that came.
    pub(crate) fn next_call(&mut self) -> Call {
        let found = self.wait_until("a question", |own| {
            let is_call = |message: &ToClient| matches!(message, ToClient::Call(_));
            let place = own.others.iter().position(is_call)?;
            match own.others.remove(place) {
                Some(ToClient::Call(call)) => Some(call),
                _ => None,
            }
        });
        found.expect("the connection ended")
    }

    /// Waits until the connection is over.
    pub(crate) fn wait_for_end(&mut self) {
        let ended = self.wait_until("the end", |_| None::<()>);
        assert_eq!(ended, None);
    }
}

pub(crate) fn kwargs(entries: &[(&str, Value)]) -> Value {
    let entries = entries.iter();
    let entries = entries.map(|(name, value)| (Value::Str((*name).to_owned()), value.clone()));
    Value::Dict(entries.collect())
}

pub(crate) fn texts(names: &[&str]) -> Value {
    Value::List(
        names
            .iter()
            .map(|name| Value::Str((*name).to_owned()))
            .collect(),
    )
}
