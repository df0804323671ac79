//! Who is connected.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_messages::LostWorker;
use treadle_types::{Cause, ClientId, Symbol, TaskId, Value, WorkerId};

use crate::definitions::Bits;
use crate::locals::Locals;

/// A node, by what it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    Worker(WorkerId),
    /// A client, or the scheduler's Python side.
    Client(ClientId),
}

#[derive(Debug)]
pub struct WorkerNode {
    /// Its number.
    pub id: WorkerId,
    pub name: String,
    /// The number of its name.
    pub symbol: Symbol,
    /// The address of its listener.
    pub address: String,
    /// The machine.
    pub host: String,
    /// How many tasks it runs at once.
    pub threads: u32,
    /// Bytes of memory for values; 0: no limit.
    pub memory: u64,
    /// When it said something last.
    pub heard: Duration,
    pub(crate) resources: Vec<(String, f64)>,
    /// What else it said of itself.
    pub(crate) info: Value,
    /// Workers whose address it was told.
    pub(crate) knows: Bits,
    /// Definitions that it was sent.
    pub(crate) defined: Bits,
    /// Its connection broke, and whoever started it is waited for until then to say why.
    pub(crate) broken: Option<Duration>,
    /// Why it ends, and the last lines of its log, as far as it said.
    pub(crate) goodbye: Option<(Cause, String)>,
    /// Bytes of values that clients were told to bring since it last said how much it has.
    pub(crate) promised: u64,
}

impl WorkerNode {
    /// Something that it said of itself.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.info.get(name) {
            Some(Value::Str(text)) => Some(text),
            _ => None,
        }
    }

    /// The host of its address, as distributed tells it: what stands between the scheme and the port.
    pub(crate) fn ip(&self) -> &str {
        let address = &self.address;
        let place = address
            .split_once("://")
            .map_or(&**address, |(_, rest)| rest);
        place.rsplit_once(':').map_or(place, |(host, _)| host)
    }

    /// The id of its process, if it said so.
    pub fn pid(&self) -> Option<i64> {
        match self.info.get("pid") {
            Some(Value::Int(pid)) => Some(*pid),
            _ => None,
        }
    }

    /// As others are told of it once it is gone.
    pub(crate) fn lost(&self, cause: Cause, log: String) -> LostWorker {
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
pub(crate) struct Workers {
    nodes: Vec<Option<Box<WorkerNode>>>,
    by_name: BTreeMap<String, WorkerId>,
    by_address: BTreeMap<String, WorkerId>,
    count: usize,
    lost: BTreeMap<Symbol, Vec<LostWorker>>,
    lost_order: VecDeque<Symbol>,
    /// Names of workers whose end somebody will tell of.
    pub(crate) supervised: BTreeSet<String>,
}

impl Workers {
    /// The id of the next worker.
    pub(crate) fn next_id(&self) -> WorkerId {
        WorkerId(self.nodes.len() as u32)
    }

    pub(crate) fn add(&mut self, node: WorkerNode) {
        self.by_name.insert(node.name.clone(), node.id);
        self.by_address.insert(node.address.clone(), node.id);
        self.count += 1;
        self.nodes.push(Some(Box::new(node)));
    }

    pub(crate) fn remove(&mut self, id: WorkerId) -> Option<Box<WorkerNode>> {
        let node = self.nodes.get_mut(id.0 as usize)?.take()?;
        self.count -= 1;
        if self.by_name.get(&node.name) == Some(&id) {
            self.by_name.remove(&node.name);
        }
        // Another one may have come at the same address.
        if self.by_address.get(&node.address) == Some(&id) {
            self.by_address.remove(&node.address);
        }
        Some(node)
    }

    #[inline]
    pub(crate) fn get(&self, id: WorkerId) -> Option<&WorkerNode> {
        self.nodes.get(id.0 as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: WorkerId) -> Option<&mut WorkerNode> {
        self.nodes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// A worker by its address or its name.
    pub(crate) fn find(&self, called: &str) -> Option<WorkerId> {
        let found = self
            .by_address
            .get(called)
            .or_else(|| self.by_name.get(called));
        found.copied()
    }

    /// Those whose address is one of this host.
    pub(crate) fn at<'a>(&'a self, host: &'a str) -> impl Iterator<Item = WorkerId> + 'a {
        let there = self.iter().filter(move |node| node.ip() == host);
        there.map(|node| node.id)
    }

    /// Whether there is one of this name, or at it as an address.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &WorkerNode> {
        self.by_name.values().filter_map(|id| self.get(*id))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut WorkerNode> {
        self.nodes.iter_mut().filter_map(Option::as_deref_mut)
    }

    pub(crate) fn ids(&self) -> Vec<WorkerId> {
        self.iter().map(|node| node.id).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Remembers a worker that is gone, for messages about tasks that it ran.
    pub(crate) fn remember(&mut self, symbol: Symbol, lost: LostWorker) {
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
    pub(crate) fn recall(&self, symbol: Symbol, cause: Option<&Cause>) -> Option<&LostWorker> {
        let entries = self.lost.get(&symbol)?;
        let fits = |lost: &&LostWorker| cause.is_none_or(|cause| *cause == lost.cause);
        entries.iter().rev().find(fits).or(entries.last())
    }
}

#[derive(Debug)]
pub struct ClientNode {
    /// Its number.
    pub id: ClientId,
    pub name: String,
    pub(crate) is_sidecar: bool,
    pub(crate) locals: Locals,
    /// Values that it keeps, with the local id of its last put.
    pub(crate) kept: BTreeMap<TaskId, u32>,
    /// Ranges of new ids of submissions of which more is to come.
    pub(crate) submissions: BTreeMap<u32, Vec<(u32, u32)>>,
    pub(crate) knows: Bits,
    /// It said that it leaves.
    pub(crate) leaves: bool,
}

impl ClientNode {
    /// The values that it keeps, with the local id of its last put.
    pub fn kept(&self) -> impl Iterator<Item = (TaskId, u32)> + '_ {
        self.kept.iter().map(|(task, id)| (*task, *id))
    }
}

/// The clients, and names in which clients want keys.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// By id: ids are not used twice, and few bytes each.
    nodes: Vec<Option<Box<ClientNode>>>,
    count: usize,
    by_name: BTreeMap<String, ClientId>,
    /// Names that are not connected (`fire-and-forget`, for one).
    pub(crate) stand_ins: BTreeMap<String, ClientId>,
    pub(crate) sidecar: Option<ClientId>,
    next: u32,
}

impl Clients {
    /// The id of the next client.
    pub(crate) fn allocate(&mut self) -> ClientId {
        self.next += 1;
        ClientId(self.next)
    }

    pub(crate) fn add(&mut self, node: ClientNode) {
        if node.is_sidecar {
            self.sidecar = Some(node.id);
        }
        self.by_name.insert(node.name.clone(), node.id);
        let place = node.id.0 as usize;
        self.nodes.resize_with(place + 1, || None);
        self.nodes[place] = Some(Box::new(node));
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Box<ClientNode>> {
        let node = self.nodes.get_mut(id.0 as usize)?.take()?;
        self.count -= 1;
        self.by_name.remove(&node.name);
        if self.sidecar == Some(id) {
            self.sidecar = None;
        }
        Some(node)
    }

    #[inline]
    pub(crate) fn get(&self, id: ClientId) -> Option<&ClientNode> {
        self.nodes.get(id.0 as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut ClientNode> {
        self.nodes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(crate) fn find(&self, name: &str) -> Option<ClientId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn ids(&self) -> Vec<ClientId> {
        let mut ids: Vec<_> = self.by_name.values().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}
