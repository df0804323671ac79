//! Who is told who the workers are: those that speak to the workers themselves.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use treadle_broadcast::Settled;
use treadle_messages::{Member, ToClient, ToWorker};
use treadle_types::{Cause, ClientId, WorkerId};

use crate::nodes::WorkerNode;
use crate::state::Core;

/// Clients that asked who is there.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    clients: BTreeSet<ClientId>,
    /// Somebody asked once: workers relay since, and must know who is gone.
    began: bool,
}

impl Audience {
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.clients.iter().copied()
    }

    /// Whether workers are to be told of every worker that goes.
    pub(crate) fn began(&self) -> bool {
        self.began
    }
}

impl Core {
    /// A client asks who is there, from now on.
    pub(crate) fn tell_members(&mut self, client: ClientId) {
        if !self.audience.clients.insert(client) {
            return;
        }
        self.audience.began = true;
        let all: Vec<Member> = self.workers.iter().map(member).collect();
        self.tell_joined(client, all);
    }

    /// A worker has joined.
    pub(crate) fn worker_joined(&mut self, worker: WorkerId) {
        let Some(member) = self.workers.get(worker).map(member) else {
            return;
        };
        for client in self.audience.clients.clone() {
            self.tell_joined(client, vec![member.clone()]);
        }
    }

    /// A worker that clients were told of is gone; that its address is of no use any more, they are
    /// told after this.
    pub(crate) fn worker_left(&mut self, worker: WorkerId, cause: &Cause) {
        let left = ToClient::Left {
            worker,
            cause: cause.clone(),
        };
        for client in self.audience.clients.clone() {
            self.tell_client(client, left.clone());
        }
    }

    /// A worker asks what is settled of a client's casts.
    pub(crate) fn ask_settled(&mut self, worker: WorkerId, client: ClientId) {
        if self.audience.clients.contains(&client) {
            self.tell_client(client, ToClient::SettledAsked(worker));
        } else {
            self.tell_worker(worker, ToWorker::SessionOver(client));
        }
    }

    /// A client answers.
    pub(crate) fn tell_settled(&mut self, client: ClientId, worker: WorkerId, settled: Settled) {
        self.tell_worker(worker, ToWorker::Settled { client, settled });
    }

    /// A client is gone.
    pub(crate) fn end_session(&mut self, client: ClientId) {
        if !self.audience.clients.remove(&client) {
            return;
        }
        for worker in self.workers.ids() {
            self.tell_worker(worker, ToWorker::SessionOver(client));
        }
    }

    fn tell_joined(&mut self, client: ClientId, members: Vec<Member>) {
        if let Some(node) = self.clients.get_mut(client) {
            for member in &members {
                node.knows.insert(member.worker.0);
            }
            self.tell_client(client, ToClient::Joined(members));
        }
    }
}

fn member(node: &WorkerNode) -> Member {
    Member {
        worker: node.id,
        name: node.name.clone(),
        address: node.address.clone(),
        host: node.host.clone(),
    }
}
