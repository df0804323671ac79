//! What must hold when nothing moves any more.

use std::collections::BTreeMap;

use treadle_types::WorkerId;

use crate::client::{Standing, decode_key, encode_key};
use crate::process::Process;
use crate::universe::{Key, key_of_task};
use crate::world::World;

impl World {
    /// Whether each machine has a worker, and the scheduler counts on it.
    pub(crate) fn are_workers_there(&self) -> bool {
        let is_there = |process: &Process| {
            let registration = process.id.and_then(|id| self.server.workers.get(&id));
            registration.is_some_and(|registration| !registration.is_lost)
        };
        let processes = self.current.iter().map(|pid| self.processes.get(&(*pid)?));
        let mut there = processes.map(|process| process.is_some_and(is_there));
        let registered = self.server.workers.values().filter(|entry| !entry.is_lost);
        there.all(|there| there) && registered.count() == self.current.len()
    }

    /// Whether clients wait for nothing, and the scheduler knows nothing if there are none.
    pub(crate) fn is_resolved(&self) -> bool {
        let mut staying = self
            .clients
            .iter()
            .filter(|client| !client.has_left)
            .peekable();
        match staying.peek() {
            None => self.server.tasks.is_empty(),
            Some(_) => staying.all(|client| {
                let mut futures = client.futures.values();
                client.fetches.is_empty()
                    && futures.all(|future| future.standing != Standing::Pending)
            }),
        }
    }

    /// Futures that are neither finished nor failed nor cancelled.
    pub(crate) fn unresolved(&self) -> String {
        let mut pending = Vec::new();
        for (client, state) in self.clients.iter().enumerate() {
            for future in state.futures.values() {
                if future.standing == Standing::Pending && !state.has_left {
                    let key = future.key;
                    let task = self.server.tasks.get(&key).copied();
                    let view = task.and_then(|task| self.server.scheduler().task(task));
                    let how = view.map(|view| {
                        let inputs = view.inputs().map(|id| {
                            let input = self.server.scheduler().task(id);
                            let holders = input.map(|input| input.holders().collect::<Vec<_>>());
                            (id, input.map(|input| input.state()), holders)
                        });
                        let inputs: Vec<_> = inputs.collect();
                        (
                            view.state(),
                            view.worker(),
                            view.constraint().cloned(),
                            inputs,
                        )
                    });
                    pending.push(format!(
                        "client {client} waits for {key:?} {task:?} {how:?}\n"
                    ));
                }
            }
        }
        let there = self.are_workers_there();
        let stuck = &self.server.stuck;
        format!(
            "{}, workers there: {there}, stuck: {stuck:?}",
            pending.concat()
        )
    }

    /// Every future has a value or a reason to have none, and everybody believes the same.
    pub(crate) fn verify_results(&mut self) -> Result<(), String> {
        for client in &self.clients {
            if client.has_left {
                continue;
            }
            if let Some((ticket, key)) = client.fetches.first_key_value() {
                return Err(format!("fetch {ticket} of {key:?} hangs"));
            }
            for future in client.futures.values() {
                match future.standing {
                    Standing::Pending => return Err(format!("hangs: {}", self.unresolved())),
                    Standing::Finished { is_inline } => {
                        self.summary.finished += 1;
                        let task = self.server.tasks.get(&future.key);
                        let Some(&task) = task else {
                            return Err(format!("{:?} is wanted, and forgotten", future.key));
                        };
                        let holders = self.server.holders(task);
                        if !is_inline && holders.is_empty() {
                            return Err(format!("{:?} is finished, and nowhere", future.key));
                        }
                        if let Some(value) = client.core.value(&encode_key(future.key)) {
                            self.oracle.must_be_current(Some(&future.key), &value)?;
                        }
                        if !self.oracle.is_in_effect(task) {
                            let key = future.key;
                            return Err(format!("{key:?} is wanted, and its effects are gone"));
                        }
                    }
                    Standing::Failed => self.summary.failed += 1,
                    Standing::Cancelled => self.summary.cancelled += 1,
                }
            }
        }
        self.verify_kept()?;
        self.verify_lineage()?;
        self.verify_shuffles()?;
        self.verify_values()
    }

    /// A task with effects can run again, as long as it is known.
    fn verify_lineage(&self) -> Result<(), String> {
        for (&key, &task) in &self.server.tasks {
            let spec = self.plan.universe.spec(key);
            let view = self.server.scheduler().task(task);
            let Some(view) = view.filter(|_| spec.has_effects) else {
                continue;
            };
            let inputs = view.inputs().map(|input| self.server.keys.get(&input));
            if !inputs.eq(spec.inputs.iter().map(Some)) || key_of_task(&view.recipe()) != Some(key)
            {
                return Err(format!("{key:?} has effects, and could not run again"));
            }
        }
        Ok(())
    }

    /// Clients keep what the scheduler believes that they keep, and nothing else.
    fn verify_kept(&self) -> Result<(), String> {
        for (client, session) in &self.server.clients {
            let mut clients = self.clients.iter();
            let state = clients.find(|state| state.connection == Some(session.connection));
            let node = self.server.core.client(*client);
            let believed = node.into_iter().flat_map(|node| node.kept());
            let believed = believed.map(|(task, id)| (self.server.keys[&task], id));
            let believed: BTreeMap<Key, u32> = believed.collect();
            if let Some(state) = state.filter(|state| !state.has_left) {
                let kept = state.core.kept_names();
                let kept = kept.filter_map(|(id, key)| Some((decode_key(key)?, id)));
                let kept: BTreeMap<Key, u32> = kept.collect();
                if kept != believed {
                    return Err(format!("{client:?} keeps {kept:?}, not {believed:?}"));
                }
            }
        }
        Ok(())
    }

    /// What is in the stores is what the scheduler believes, and right.
    fn verify_values(&self) -> Result<(), String> {
        for process in self.processes.values() {
            process.check_store()?;
            let core = &process.core;
            let idle = core.busy() == 0 && core.ready() == 0 && core.waiting() == 0;
            if !idle || core.fetching().0 > 0 {
                return Err(format!("machine {} still does something", process.machine));
            }
            let Some(worker) = process.id else {
                continue;
            };
            for (object, stored) in &process.store {
                let Some((key, holders)) = self.server.find(object.task) else {
                    return Err(format!("{worker:?} holds {object:?}, which is forgotten"));
                };
                if !holders.contains(&worker) {
                    return Err(format!(
                        "{worker:?} holds {object:?}, and the scheduler does not know"
                    ));
                }
                if !self.oracle.versions.is_current(key, stored.value) {
                    return Err(format!("{worker:?} holds another value of {key:?}"));
                }
            }
            self.verify_holdings(worker, process)?;
        }
        Ok(())
    }

    fn verify_holdings(&self, worker: WorkerId, process: &Process) -> Result<(), String> {
        for &task in self.server.tasks.values() {
            if self.server.holders(task).contains(&worker)
                && !process.store.keys().any(|object| object.task == task)
            {
                return Err(format!("{worker:?} is to hold {task:?}, and does not"));
            }
        }
        Ok(())
    }

    /// The clients have left: nothing is left behind.
    pub(crate) fn verify_emptiness(&self) -> Result<(), String> {
        if self.server.scheduler().tasks().next().is_some() {
            return Err(format!("the scheduler still knows {:?}", self.server.tasks));
        }
        if !self.server.tasks.is_empty() {
            return Err(format!("keys are left: {:?}", self.server.tasks));
        }
        let definitions = self.server.core.definitions();
        if definitions != (0, 0) {
            return Err(format!("definitions are left: {definitions:?}"));
        }
        for process in self.processes.values() {
            if !process.core.is_empty() || !process.store.is_empty() {
                let objects: Vec<_> = process.core.objects().collect();
                return Err(format!(
                    "machine {} is left with {objects:?}",
                    process.machine
                ));
            }
        }
        Ok(())
    }
}
