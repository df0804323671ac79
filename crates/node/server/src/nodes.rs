//! Who is connected.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use treadle_messages::{FromClient, FromWorker, LostWorker, ToClient, ToWorker};
use treadle_node_wire::Link;
use treadle_types::{Cause, ClientId, Symbol, TaskId, Value, WorkerId};

use super::definitions::Bits;
use super::locals::Locals;

/// A node, by what it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    Worker(WorkerId),
    Client(ClientId),
}

/// A worker.
#[derive(Debug)]
pub(super) struct WorkerNode {
    pub(super) id: WorkerId,
    /// Of its connection in the poller.
    pub(super) key: usize,
    pub(super) name: String,
    pub(super) symbol: Symbol,
    pub(super) address: String,
    pub(super) host: String,
    pub(super) threads: u32,
    pub(super) memory: u64,
    pub(super) resources: Vec<(String, f64)>,
    /// What else it said of itself.
    pub(super) info: Value,
    pub(super) link: Link<FromWorker, ToWorker>,
    /// Workers whose address it was told.
    pub(super) knows: Bits,
    /// Definitions that it was sent.
    pub(super) defined: Bits,
    pub(super) heard: Duration,
    /// What had arrived of a large message when it was looked after.
    pub(super) arrived: u64,
    /// Whether something was pushed since the last flush.
    pub(super) dirty: bool,
    /// Whether that was nothing but releases.
    pub(super) only_releases: bool,
    /// Its connection broke, and whoever started it is waited for until then to say why.
    pub(super) broken: Option<Duration>,
    /// Why it ends, and the last lines of its log, as far as it said.
    pub(super) goodbye: Option<(Cause, String)>,
    /// Bytes of values that clients were told to bring since it last said how much it has.
    pub(super) promised: u64,
}

impl WorkerNode {
    /// Something that it said of itself.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.info.get(name) {
            Some(Value::Str(text)) => Some(text),
            _ => None,
        }
    }

    /// The id of its process, if it said so.
    pub(super) fn pid(&self) -> Option<i64> {
        match self.info.get("pid") {
            Some(Value::Int(pid)) => Some(*pid),
            _ => None,
        }
    }

    /// As others are told of it once it is gone.
    pub(super) fn lost(&self, cause: Cause, log: String) -> LostWorker {
        LostWorker {
            name: self.name.clone(),
            address: self.address.clone(),
            cause,
            log,
        }
    }
}

/// How many workers that are gone are remembered.
const REMEMBERED: usize = 1024;

/// The workers, and those that were.
#[derive(Debug, Default)]
pub(super) struct Workers {
    nodes: Vec<Option<Box<WorkerNode>>>,
    by_name: BTreeMap<String, WorkerId>,
    by_address: HashMap<String, WorkerId>,
    count: usize,
    lost: HashMap<Symbol, Vec<LostWorker>>,
    lost_order: VecDeque<Symbol>,
    /// Names of workers whose end somebody will tell of.
    pub(super) supervised: HashSet<String>,
}

impl Workers {
    /// The id of the next worker.
    pub(super) fn next_id(&self) -> WorkerId {
        WorkerId(self.nodes.len() as u32)
    }

    pub(super) fn add(&mut self, node: WorkerNode) {
        self.by_name.insert(node.name.clone(), node.id);
        self.by_address.insert(node.address.clone(), node.id);
        self.count += 1;
        self.nodes.push(Some(Box::new(node)));
    }

    pub(super) fn remove(&mut self, id: WorkerId) -> Option<Box<WorkerNode>> {
        let node = self.nodes.get_mut(id.0 as usize)?.take()?;
        self.count -= 1;
        if self.by_name.get(&node.name) == Some(&id) {
            self.by_name.remove(&node.name);
        }
        if self.by_address.get(&node.address) == Some(&id) {
            self.by_address.remove(&node.address);
        }
        Some(node)
    }

    #[inline]
    pub(super) fn get(&self, id: WorkerId) -> Option<&WorkerNode> {
        self.nodes.get(id.0 as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: WorkerId) -> Option<&mut WorkerNode> {
        self.nodes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// A worker by its address or its name.
    pub(super) fn find(&self, called: &str) -> Option<WorkerId> {
        let found = self
            .by_address
            .get(called)
            .or_else(|| self.by_name.get(called));
        found.copied()
    }

    /// All of them, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &WorkerNode> {
        self.by_name.values().filter_map(|id| self.get(*id))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut WorkerNode> {
        self.nodes.iter_mut().filter_map(Option::as_deref_mut)
    }

    pub(super) fn ids(&self) -> Vec<WorkerId> {
        self.iter().map(|node| node.id).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Remembers a worker that is gone, for messages about tasks that it ran.
    pub(super) fn remember(&mut self, symbol: Symbol, lost: LostWorker) {
        self.lost.entry(symbol).or_default().push(lost);
        self.lost_order.push_back(symbol);
        if self.lost_order.len() > REMEMBERED
            && let Some(oldest) = self.lost_order.pop_front()
            && let Some(entries) = self.lost.get_mut(&oldest)
        {
            entries.remove(0);
            if entries.is_empty() {
                self.lost.remove(&oldest);
            }
        }
    }

    /// The latest worker of that name that was lost, of that cause if one was.
    pub(super) fn recall(&self, symbol: Symbol, cause: Option<&Cause>) -> Option<&LostWorker> {
        let entries = self.lost.get(&symbol)?;
        let fits = |lost: &&LostWorker| cause.is_none_or(|cause| *cause == lost.cause);
        entries.iter().rev().find(fits).or(entries.last())
    }
}

/// A client.
#[derive(Debug)]
pub(super) struct ClientNode {
    pub(super) id: ClientId,
    pub(super) key: usize,
    pub(super) name: String,
    pub(super) is_sidecar: bool,
    pub(super) link: Link<FromClient, ToClient>,
    pub(super) locals: Locals,
    /// Values that it keeps, with the local id of its last put.
    pub(super) kept: HashMap<TaskId, u32>,
    /// Ranges of new ids of submissions of which more is to come.
    pub(super) submissions: HashMap<u32, Vec<(u32, u32)>>,
    pub(super) knows: Bits,
    pub(super) dirty: bool,
    /// Whether it reads the stream of task events.
    pub(super) streams: bool,
    /// It said that it leaves.
    pub(super) leaves: bool,
}

/// The clients, and names in which clients want keys.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// By id: ids are not used twice, and few bytes each.
    nodes: Vec<Option<Box<ClientNode>>>,
    count: usize,
    by_name: BTreeMap<String, ClientId>,
    /// Names that are not connected (`fire-and-forget`, for one).
    pub(super) stand_ins: HashMap<String, ClientId>,
    pub(super) sidecar: Option<ClientId>,
    next: u32,
}

impl Clients {
    /// The id of the next client.
    pub(super) fn allocate(&mut self) -> ClientId {
        self.next += 1;
        ClientId(self.next)
    }

    pub(super) fn add(&mut self, node: ClientNode) {
        if node.is_sidecar {
            self.sidecar = Some(node.id);
        }
        self.by_name.insert(node.name.clone(), node.id);
        let place = node.id.0 as usize;
        self.nodes.resize_with(place + 1, || None);
        self.nodes[place] = Some(Box::new(node));
        self.count += 1;
    }

    pub(super) fn remove(&mut self, id: ClientId) -> Option<Box<ClientNode>> {
        let node = self.nodes.get_mut(id.0 as usize)?.take()?;
        self.count -= 1;
        self.by_name.remove(&node.name);
        if self.sidecar == Some(id) {
            self.sidecar = None;
        }
        Some(node)
    }

    #[inline]
    pub(super) fn get(&self, id: ClientId) -> Option<&ClientNode> {
        self.nodes.get(id.0 as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut ClientNode> {
        self.nodes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(super) fn find(&self, name: &str) -> Option<ClientId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn ids(&self) -> Vec<ClientId> {
        let mut ids: Vec<_> = self.by_name.values().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}
