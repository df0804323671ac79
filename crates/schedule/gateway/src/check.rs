//! The invariants.

use alloc::collections::{BTreeMap, BTreeSet};

use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_types::{ClientId, TaskId};

use crate::nodes::Node;
use crate::state::Core;

type Checked = Result<(), InvariantError>;

impl Core {
    /// Verifies every invariant, those of the scheduler within included, by counting anew.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug.
    pub fn check(&self) -> Checked {
        self.scheduler.check()?;
        ensure!(
            self.out.is_empty()
                && self.followed.0.is_empty()
                && self.forgotten.is_empty()
                && self.later.is_empty()
                && self.losing.is_empty(),
            "an event was not carried through"
        );
        self.check_keys()?;
        self.check_clients()?;
        self.check_workers()?;
        self.check_definitions()?;
        self.calls.check(|node| self.is_there(node))?;
        for node in self.waiting.askers() {
            ensure!(self.is_there(node), "{node:?} is gone, and waits");
        }
        self.awaited
            .check(|client| self.clients.get(client).is_some())
    }

    fn is_there(&self, node: Node) -> bool {
        match node {
            Node::Worker(worker) => self.workers.get(worker).is_some(),
            Node::Client(client) => self.clients.get(client).is_some(),
        }
    }

    /// The scheduler knows the tasks that have keys, and no others.
    fn check_keys(&self) -> Checked {
        self.keys.check()?;
        let named: BTreeSet<TaskId> = self.keys.tasks().collect();
        let known: BTreeSet<TaskId> = self.scheduler.tasks().map(|view| view.id()).collect();
        ensure_eq!(named, known, "tasks with keys, and those of the scheduler");
        for task in self.spread.keys() {
            ensure!(known.contains(task), "{task:?} is forgotten, and spread");
        }
        Ok(())
    }

    fn check_clients(&self) -> Checked {
        let joined: BTreeSet<ClientId> = self.scheduler.clients().collect();
        let stand_ins = self.clients.stand_ins.values().copied();
        let ids: BTreeSet<ClientId> = self.clients.ids().into_iter().chain(stand_ins).collect();
        ensure_eq!(ids, joined, "clients, and those of the scheduler");
        for client in self.clients() {
            let id = client.id;
            for task in self.scheduler.wanted_by(id) {
                let local = client.locals.wanted(task);
                let meant = local.and_then(|local| client.locals.get(local));
                ensure!(
                    meant.is_some_and(|meant| meant.task == task
                        && meant.generation == self.keys.generation(task)),
                    "{id:?} wants {task:?} as {local:?}, which means {meant:?}"
                );
            }
            for task in client.kept.keys() {
                ensure!(
                    self.scheduler.task(*task).is_some(),
                    "{id:?} keeps {task:?}, which is forgotten"
                );
            }
        }
        for client in self.audience.clients() {
            ensure!(
                self.clients.get(client).is_some(),
                "{client:?} is gone, and hears of workers"
            );
        }
        Ok(())
    }

    fn check_workers(&self) -> Checked {
        let ids: BTreeSet<_> = self.workers.ids().into_iter().collect();
        let known: BTreeSet<_> = self.scheduler.workers().map(|view| view.id()).collect();
        ensure_eq!(ids, known, "workers, and those of the scheduler");
        ensure_eq!(self.workers.len(), ids.len(), "workers, counted");
        Ok(())
    }

    /// Definitions are used by the tasks that say so.
    fn check_definitions(&self) -> Checked {
        let mut tasks: BTreeMap<ClientId, usize> = BTreeMap::new();
        let mut notes: BTreeMap<u32, u32> = BTreeMap::new();
        for task in self.keys.tasks() {
            let Some(entry) = self.keys.get(task).filter(|e| e.owner != ClientId(0)) else {
                continue;
            };
            *tasks.entry(entry.owner).or_default() += 1;
            *notes.entry(entry.definitions).or_default() += 1;
        }
        self.definitions.check(&tasks, &notes)
    }
}
