//! Who is gone, and why.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use core::mem;
use core::time::Duration;

use treadle_messages::{ToClient, ToWorker};
use treadle_scheduler::Event;
use treadle_types::{Cause, ClientId, Value, WorkerId};

use crate::effect::Effect;
use crate::nodes::Node;
use crate::state::Core;

/// A scheduler that has not ticked for so long was busy, and did not listen.
const ABSENCE: Duration = Duration::from_secs(1);

/// How long the one that started a worker has to say why its connection broke, if it promised to: a
/// busy machine may keep it from that for a while.
const GRACE: Duration = Duration::from_secs(3);
/// The same, of one that only said that there is somebody.
const SHORT_GRACE: Duration = Duration::from_millis(200);

impl Core {
    /// The connection of a worker broke.
    pub(crate) fn worker_broke(&mut self, worker: WorkerId) {
        let Some(node) = self.workers.get(worker) else {
            return;
        };
        let grace = if self.workers.supervised.contains(&node.name) {
            Some(GRACE)
        } else {
            let is_supervised = matches!(node.info.get("supervised"), Some(Value::Bool(true)));
            is_supervised.then_some(SHORT_GRACE)
        };
        let now = self.now;
        let Some(node) = self.workers.get_mut(worker) else {
            return;
        };
        if let Some((cause, log)) = node.goodbye.take() {
            self.losing.push((worker, cause, log));
        } else if let Some(grace) = grace {
            node.broken.get_or_insert(now + grace);
            // The next look may be far off, and the grace is shorter than that.
            self.look_at = now;
        } else {
            self.losing
                .push((worker, Cause::Unreachable, String::new()));
        }
    }

    /// Whoever started a worker says how its process ended.
    pub(crate) fn worker_exited(
        &mut self,
        name: &str,
        pid: Option<i64>,
        cause: Cause,
        log: String,
    ) -> bool {
        self.workers.supervised.insert(name.to_owned());
        let Some(worker) = self.workers.find(name) else {
            return false;
        };
        let Some(node) = self.workers.get(worker) else {
            return false;
        };
        if let (Some(its), Some(pid)) = (node.pid(), pid)
            && its != pid
        {
            // Another process has taken its place.
            return false;
        }
        self.losing.push((worker, cause, log));
        true
    }

    /// A worker says something that is long on its way.
    pub fn hears(&mut self, worker: WorkerId, now: Duration) {
        if let Some(node) = self.workers.get_mut(worker) {
            node.heard = now;
        }
    }

    /// When the next tick looks for workers that say nothing.
    pub fn next_look(&self) -> Duration {
        self.look_at
    }

    /// Looks after those who say nothing.
    pub(crate) fn look_after_workers(&mut self, was_stopped: bool) {
        let (now, timeout) = (self.now, self.settings.worker_timeout);
        let was_busy = now > mem::replace(&mut self.ticked, now) + ABSENCE;
        if was_stopped || was_busy {
            // What they said meanwhile is still to be read, and they may have been stopped, too.
            for node in self.workers.iter_mut() {
                node.heard = now;
            }
        }
        if now < self.look_at {
            return;
        }
        // One that comes later is not late before.
        let mut next = now + timeout;
        for node in self.workers.iter_mut() {
            let late = node.broken;
            let silent = node.heard + timeout;
            let gone = late.map_or(silent, |late| late.min(silent));
            if now >= gone {
                self.losing
                    .push((node.id, Cause::Unreachable, String::new()));
            }
            next = next.min(gone);
        }
        self.look_at = next;
    }

    /// Drops the workers that were found to be gone.
    pub(crate) fn lose_workers(&mut self) {
        while let Some((worker, cause, log)) = self.losing.pop() {
            self.lose_worker(worker, cause, log);
        }
    }

    fn lose_worker(&mut self, worker: WorkerId, cause: Cause, log: String) {
        let Some(mut node) = self.workers.remove(worker) else {
            return;
        };
        let log = if log.is_empty() {
            node.goodbye.take().map_or(log, |(_, log)| log)
        } else {
            log
        };
        let lost = node.lost(cause.clone(), log);
        self.out.push(Effect::WorkerLost(worker, lost.clone()));
        self.workers.remember(node.symbol, lost);
        self.worker_left(worker, &cause);
        let all = self.audience.began();
        for other in self.workers.ids() {
            if all
                || self
                    .workers
                    .get(other)
                    .is_some_and(|other| other.knows.has(worker.0))
            {
                self.tell_worker(other, ToWorker::PeerLost(worker));
            }
        }
        for client in self.clients.ids() {
            if self
                .clients
                .get(client)
                .is_some_and(|client| client.knows.has(worker.0))
            {
                self.tell_client(client, ToClient::PeerLost(worker));
            }
        }
        self.drop_calls(Node::Worker(worker), &format!("worker {}", node.address));
        self.inform_sidecar(
            "worker-lost",
            Value::Dict(vec![
                (Value::str("address"), Value::Str(node.address.clone())),
                (Value::str("name"), Value::Str(node.name.clone())),
                (Value::str("cause"), Value::Str(cause.to_string())),
            ]),
        );
        self.retired(worker);
        let why = cause.clone();
        self.feed_own(Event::WorkerLost { worker, cause });
        // The core knows first: what the master has run again must not go there.
        self.server_lost(worker, &why);
    }

    /// A client is gone; why, as the log has it.
    pub(crate) fn lose_client(&mut self, client: ClientId, why: Option<String>) {
        let Some(node) = self.clients.remove(client) else {
            return;
        };
        let name = node.name;
        self.out.push(Effect::ClientLost {
            client,
            name: name.clone(),
            why,
        });
        self.drop_calls(Node::Client(client), &format!("client {name}"));
        self.unwait(Node::Client(client));
        self.awaited.remove_client(client);
        self.shuffles_missed(client, None);
        self.end_session(client);
        self.inform_sidecar(
            "client-left",
            Value::Dict(vec![(Value::str("client"), Value::Str(name))]),
        );
        self.feed_own(Event::ClientLeft(client));
        if let Some(places) = self.definitions.leave(client) {
            self.undefine(client, &places);
        }
    }
}
