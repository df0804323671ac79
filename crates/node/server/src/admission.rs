//! The first words of a node, and whether it may take part.

use tracing::{debug, warn};
use treadle_messages::{Hello, Role, Welcome};
use treadle_net::Peer;
use treadle_node_wire::{Link, WELCOME, WireError, decode_hello, encode_welcome};
use treadle_scheduler::{Event, WorkerProfile};
use treadle_types::{ClientId, Value, WorkerId};

use super::definitions::Bits;
use super::hub::{Connection, Hub};
use super::locals::Locals;
use super::nodes::{ClientNode, Node, WorkerNode};

/// Why a node is not let in, as it is told.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Hello(#[from] WireError),
    #[error(
        "{who} runs Python {theirs}, and this cluster Python {ours}: functions travel as pickles, so \
         all must run the same minor version"
    )]
    Python {
        who: String,
        ours: String,
        theirs: String,
    },
    #[error("a node must have a name")]
    Nameless,
    #[error("a worker called {0:?} is connected already: start this one with another --name")]
    NameOfWorker(String),
    #[error("a client called {0:?} is connected already")]
    NameOfClient(String),
    #[error("the scheduler has a Python side already")]
    SecondSidecar,
}

impl Hub {
    /// A node has introduced itself.
    pub(super) fn greet(&mut self, key: usize, peer: &Peer, words: &[u8]) {
        let outcome = decode_hello(words)
            .map_err(Refused::from)
            .and_then(|hello| self.admit(key, peer, hello));
        let welcome = match outcome {
            Ok((node, id)) => {
                let info = self.about().to_bytes().into();
                self.connections.insert(key, Connection::Node(node));
                Welcome::Accepted { id, info }
            }
            Err(reason) => {
                warn!(target: treadle_log::SCHEDULER, "{} was refused: {reason}", peer.address());
                self.connections.remove(&key);
                Welcome::Refused(reason.to_string())
            }
        };
        let is_refused = matches!(welcome, Welcome::Refused(_));
        // Fails where the connection ended, which is noticed elsewhere.
        let _ = peer.send(WELCOME, &[encode_welcome(&welcome).into()]);
        if is_refused {
            peer.start_close();
            self.closing.push(peer.clone());
        } else {
            self.announce(key);
        }
    }

    fn admit(&mut self, key: usize, peer: &Peer, hello: Hello) -> Result<(Node, u32), Refused> {
        let ours = self
            .settings
            .python
            .get_or_insert_with(|| hello.python.clone());
        if *ours != hello.python {
            return Err(Refused::Python {
                who: described(&hello),
                ours: ours.clone(),
                theirs: hello.python,
            });
        }
        if hello.name.is_empty() {
            return Err(Refused::Nameless);
        }
        let info = Value::from_bytes(&hello.info).unwrap_or(Value::None);
        match hello.role {
            Role::Worker {
                address,
                host,
                threads,
                memory,
                resources,
            } => {
                let name = hello.name;
                self.free_name(&name)?;
                let id = self.workers.next_id();
                let most = self.settings.largest_message;
                self.workers.add(WorkerNode {
                    id,
                    key,
                    symbol: self.symbols.intern(&name),
                    name,
                    address,
                    host,
                    threads,
                    memory,
                    resources,
                    info,
                    link: Link::new(peer.clone(), most),
                    knows: Bits::default(),
                    defined: Bits::default(),
                    heard: self.now,
                    arrived: 0,
                    dirty: false,
                    only_releases: false,
                    broken: None,
                    goodbye: None,
                    promised: 0,
                });
                Ok((Node::Worker(id), id.0))
            }
            Role::Client => self.admit_client(key, peer, hello.name, false),
            Role::Sidecar => self.admit_client(key, peer, hello.name, true),
        }
    }

    /// A worker of this name can come, since the one before it is gone.
    fn free_name(&mut self, name: &str) -> Result<(), Refused> {
        let Some(before) = self.workers.find(name) else {
            return Ok(());
        };
        let node = self.workers.get(before);
        if node.is_none_or(|node| node.link.peer().ended().is_none()) {
            return Err(Refused::NameOfWorker(name.to_owned()));
        }
        // Nobody has said why.
        self.losing
            .push((before, treadle_types::Cause::Unreachable, String::new()));
        self.lose_workers();
        Ok(())
    }

    fn admit_client(
        &mut self,
        key: usize,
        peer: &Peer,
        name: String,
        is_sidecar: bool,
    ) -> Result<(Node, u32), Refused> {
        if is_sidecar && self.clients.sidecar.is_some() {
            return Err(Refused::SecondSidecar);
        }
        if self.clients.find(&name).is_some() {
            return Err(Refused::NameOfClient(name));
        }
        let id = self.clients.allocate();
        let most = self.settings.largest_message;
        self.clients.add(ClientNode {
            id,
            key,
            name,
            is_sidecar,
            link: Link::new(peer.clone(), most),
            locals: Locals::new(),
            kept: std::collections::HashMap::new(),
            submissions: std::collections::HashMap::new(),
            knows: Bits::default(),
            dirty: false,
            streams: false,
            leaves: false,
        });
        self.definitions.join(id);
        Ok((Node::Client(id), id.0))
    }

    /// The core learns of a node once the node has been told that it is one.
    fn announce(&mut self, key: usize) {
        match self.connections.get(&key) {
            Some(Connection::Node(Node::Worker(worker))) => self.announce_worker(*worker),
            Some(Connection::Node(Node::Client(client))) => self.announce_client(*client),
            _ => {}
        }
    }

    fn announce_worker(&mut self, worker: WorkerId) {
        let Some(node) = self.workers.get(worker) else {
            return;
        };
        // As in distributed, the address without its scheme and its host alone name it as well.
        let place = node
            .address
            .split_once("://")
            .map_or("", |(_, place)| place);
        let ip = place.rsplit_once(':').map_or("", |(host, _)| host);
        let names: [&str; 5] = [&node.name, &node.address, &node.host, place, ip];
        let names = names.into_iter().filter(|name| !name.is_empty());
        let profile = WorkerProfile {
            name: node.symbol,
            host: self.symbols.intern(&node.host),
            aliases: names.map(|name| self.symbols.intern(name)).collect(),
            threads: node.threads,
            memory: node.memory,
            resources: node
                .resources
                .iter()
                .map(|(name, amount)| (self.symbols.intern(name), *amount))
                .collect(),
        };
        let about = vec![
            (Value::str("address"), Value::Str(node.address.clone())),
            (Value::str("name"), Value::Str(node.name.clone())),
        ];
        debug!(target: treadle_log::SCHEDULER, "worker {} at {} has joined", node.name, node.address);
        self.feed_own(Event::WorkerJoined { worker, profile });
        self.server_joined(worker);
        self.worker_joined(worker);
        self.inform_sidecar("worker-joined", Value::Dict(about));
        self.trace_join(worker);
    }

    fn announce_client(&mut self, client: ClientId) {
        self.feed_own(Event::ClientJoined(client));
        let Some(node) = self.clients.get(client) else {
            return;
        };
        debug!(target: treadle_log::SCHEDULER, "client {} has connected", node.name);
        if !node.is_sidecar {
            let about = vec![(Value::str("client"), Value::Str(node.name.clone()))];
            self.inform_sidecar("client-joined", Value::Dict(about));
        }
    }

    /// What the scheduler says about itself.
    fn about(&self) -> Value {
        Value::Dict(vec![
            (Value::str("type"), Value::str("Scheduler")),
            (Value::str("id"), Value::Str(self.settings.id.clone())),
            (
                Value::str("address"),
                Value::Str(self.settings.address.clone()),
            ),
            (Value::str("version"), Value::str(env!("CARGO_PKG_VERSION"))),
            (
                Value::str("http"),
                match &self.settings.http {
                    Some((link, _)) => Value::Str(link.clone()),
                    None => Value::None,
                },
            ),
        ])
    }
}

fn described(hello: &Hello) -> String {
    match hello.role {
        Role::Worker { .. } => format!("worker {:?}", hello.name),
        Role::Client => format!("client {:?}", hello.name),
        Role::Sidecar => "the scheduler's Python side".to_owned(),
    }
}
