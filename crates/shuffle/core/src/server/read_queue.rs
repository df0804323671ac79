//! Reads that wait for their turn: a queue for each application that reads.

use alloc::collections::{BTreeMap, VecDeque};

use crate::config::Guard;
use crate::server::ConnectionId;
use crate::server::shares::Turn;
use crate::{ApplicationId, Fetch, Tenant};

/// A read that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) to: ConnectionId,
    pub(super) fetch: Fetch,
    /// Who reads.
    pub(super) tenant: Tenant,
    pub(super) turn: Turn,
}

/// Reads that wait.
#[derive(Debug, Default)]
pub(super) struct ReadQueue {
    /// By application. None is empty.
    queues: BTreeMap<ApplicationId, VecDeque<(u64, Waiting)>>,
    length: usize,
    /// How many have ever waited.
    last: u64,
}

impl ReadQueue {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many reads of an application wait, and the one that came first.
    pub(super) fn of(&self, application: ApplicationId) -> (usize, Option<Turn>) {
        let queue = self.queues.get(&queue_of(application));
        let first = queue.and_then(VecDeque::front);
        (
            queue.map_or(0, VecDeque::len),
            first.map(|(_, waiting)| waiting.turn),
        )
    }

    /// Whether reads of another application wait.
    pub(super) fn has_others(&self, application: ApplicationId) -> bool {
        let mut queues = self.queues.keys();
        queues.any(|&other| other != queue_of(application))
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.last += 1;
        self.length += 1;
        let queue = queue_of(waiting.tenant.application);
        let queue = self.queues.entry(queue).or_default();
        queue.push_back((self.last, waiting));
    }

    /// What came first of each application, and a number that says which of two came before the other.
    pub(super) fn heads(&self) -> impl Iterator<Item = (u64, &Waiting)> {
        let heads = self.queues.values().filter_map(VecDeque::front);
        heads.map(|(number, waiting)| (*number, waiting))
    }

    /// Takes what came first of an application.
    pub(super) fn pop(&mut self, application: ApplicationId) -> Option<Waiting> {
        let key = queue_of(application);
        let queue = self.queues.get_mut(&key)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        let (_, waiting) = first?;
        self.length -= 1;
        Some(waiting)
    }

    /// Takes what came last of an application.
    pub(super) fn pop_last(&mut self, application: ApplicationId) -> Option<Waiting> {
        let key = queue_of(application);
        let queue = self.queues.get_mut(&key)?;
        let (_, last) = queue.pop_back()?;
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        self.length -= 1;
        Some(last)
    }

    /// The applications of which reads wait, and their priorities.
    pub(super) fn tenants(&self) -> impl Iterator<Item = Tenant> {
        self.heads().map(|(_, waiting)| waiting.tenant)
    }

    /// Drops those that are not to stay.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&Waiting) -> bool) {
        for queue in self.queues.values_mut() {
            queue.retain(|(_, waiting)| stays(waiting));
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.length = self.queues.values().map(VecDeque::len).sum();
    }
}

/// Without the guard all wait in one queue.
fn queue_of(application: ApplicationId) -> ApplicationId {
    match Guard::Shares.holds() {
        true => application,
        false => ApplicationId::default(),
    }
}
