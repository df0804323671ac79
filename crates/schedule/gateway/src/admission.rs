//! The first words of a node, and whether it may take part.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use core::time::Duration;

use treadle_messages::{Hello, Role};
use treadle_scheduler::{Event, WorkerProfile};
use treadle_types::{ClientId, Value, WorkerId};

use crate::definitions::Bits;
use crate::effect::Effects;
use crate::locals::Locals;
use crate::nodes::{ClientNode, Node, WorkerNode};
use crate::state::Core;

/// Why a node is not let in, as it is told.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It runs another Python.
    #[error(
        "{who} runs Python {theirs}, and this cluster Python {ours}: functions travel as pickles, so \
         all must run the same minor version"
    )]
    Python {
        /// The node.
        who: String,
        /// The cluster's.
        ours: String,
        /// The node's.
        theirs: String,
    },
    /// It has no name.
    #[error("a node must have a name")]
    Nameless,
    /// There is a worker of its name.
    #[error("a worker called {0:?} is connected already: start this one with another --name")]
    NameOfWorker(String),
    /// There is a client of its name.
    #[error("a client called {0:?} is connected already")]
    NameOfClient(String),
    /// There is one.
    #[error("the scheduler has a Python side already")]
    SecondSidecar,
}

impl Core {
    /// Lets a node in that has introduced itself. What follows is said after the node was told its
    /// number. A worker whose name a new one takes must be [gone](crate::Event::WorkerGone) before.
    ///
    /// # Errors
    /// When it may not take part; nothing has changed then, except that the first node decides about
    /// the cluster's Python.
    pub fn admit(
        &mut self,
        hello: Hello,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<Node, Refused> {
        self.step(now, effects, |core| {
            let node = core.add(hello)?;
            match node {
                Node::Worker(worker) => core.announce_worker(worker),
                Node::Client(client) => core.announce_client(client),
            }
            Ok(node)
        })
    }

    fn add(&mut self, hello: Hello) -> Result<Node, Refused> {
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
                if self.workers.is_named(&name) {
                    return Err(Refused::NameOfWorker(name));
                }
                let id = self.workers.next_id();
                self.workers.add(WorkerNode {
                    id,
                    symbol: self.symbols.intern(&name),
                    name,
                    address,
                    host,
                    threads,
                    memory,
                    resources,
                    info,
                    knows: Bits::default(),
                    defined: Bits::default(),
                    heard: self.now,
                    broken: None,
                    goodbye: None,
                    promised: 0,
                });
                Ok(Node::Worker(id))
            }
            Role::Client => self.add_client(hello.name, false),
            Role::Sidecar => self.add_client(hello.name, true),
        }
    }

    fn add_client(&mut self, name: String, is_sidecar: bool) -> Result<Node, Refused> {
        if is_sidecar && self.clients.sidecar.is_some() {
            return Err(Refused::SecondSidecar);
        }
        if self.clients.find(&name).is_some() {
            return Err(Refused::NameOfClient(name));
        }
        let id = self.clients.allocate();
        self.clients.add(ClientNode {
            id,
            name,
            is_sidecar,
            locals: Locals::new(),
            kept: BTreeMap::new(),
            submissions: BTreeMap::new(),
            knows: Bits::default(),
            leaves: false,
        });
        self.definitions.join(id);
        Ok(Node::Client(id))
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
        self.feed_own(Event::WorkerJoined { worker, profile });
        self.server_joined(worker);
        self.worker_joined(worker);
        self.inform_sidecar("worker-joined", Value::Dict(about));
    }

    fn announce_client(&mut self, client: ClientId) {
        self.feed_own(Event::ClientJoined(client));
        let Some(node) = self.clients.get(client) else {
            return;
        };
        if !node.is_sidecar {
            let about = vec![(Value::str("client"), Value::Str(node.name.clone()))];
            self.inform_sidecar("client-joined", Value::Dict(about));
        }
    }

    /// What the scheduler says about itself to nodes that it lets in.
    pub fn about(&self) -> Value {
        Value::Dict(vec![
            (Value::str("type"), Value::str("Scheduler")),
            (Value::str("id"), Value::Str(self.settings.id.clone())),
            (
                Value::str("address"),
                Value::Str(self.settings.address.clone()),
            ),
            (Value::str("version"), Value::str(env!("CARGO_PKG_VERSION"))),
            (Value::str("sight"), Value::Bool(self.settings.sight)),
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
