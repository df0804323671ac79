//! Workers that leave, and starting anew.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use treadle_messages::{Leave, ToClient, ToWorker};
use treadle_scheduler::Event;
use treadle_types::{Cause, TaskId, Value, WorkerId};

use super::{Answered, Arguments, OperationError, dict, int};
use crate::nodes::Node;
use crate::state::Core;
use crate::waiting::Wanted;

impl Core {
    /// Workers leave, and their values move away first. Answered when they are gone.
    pub(crate) fn retire_workers(
        &mut self,
        asker: Node,
        id: u64,
        arguments: &Arguments,
    ) -> Answered {
        let workers = match arguments.integer("n") {
            Some(count) if arguments.get("workers").is_none() => {
                self.emptiest(usize::try_from(count).unwrap_or(0))
            }
            _ => self.named_workers(arguments),
        };
        // An actor cannot move: its worker stays, as distributed has it.
        let has_actor = |worker: &WorkerId| {
            let view = self.scheduler.worker(*worker);
            let held = view.map_or(&[][..], |view| view.held());
            let is_actor = |task: &&TaskId| {
                let view = self.scheduler.task(**task);
                view.is_some_and(|view| view.is_actor())
            };
            held.iter().any(|task| is_actor(&task))
        };
        let workers: Vec<WorkerId> = workers.into_iter().filter(|w| !has_actor(w)).collect();
        let identities: Vec<(Value, Value)> = workers
            .iter()
            .map(|worker| (self.address(*worker), self.identity_of(*worker)))
            .collect();
        if workers.is_empty() {
            return Ok(Some(Value::Dict(identities)));
        }
        let waited = self.waiting.add(
            self.now,
            asker,
            id,
            Wanted::Gone(workers.clone()),
            Value::Dict(identities),
        );
        if !waited {
            return Err(OperationError::Crowded);
        }
        for worker in workers {
            self.server_leaves(worker);
            self.feed(Event::Drain(worker))?;
        }
        Ok(None)
    }

    /// How many workers may be lost while they run a task: the number that it is from now on, if one is given.
    pub(crate) fn allowed_failures(&mut self, arguments: &Arguments) -> Answered {
        if let Some(count) = arguments.integer("count") {
            let wrong = OperationError::Invalid("allowed_failures: count= of 0 or more");
            let count = u32::try_from(count).map_err(|_| wrong)?;
            self.scheduler.allow_losses(count);
        }
        Ok(Some(int(self.scheduler.allowed_losses())))
    }

    /// The worker that asks has other abstract resources from now on: amounts by name.
    pub(crate) fn set_resources(&mut self, asker: Node, arguments: &Arguments) -> Answered {
        let wrong = OperationError::Invalid("set_resources: resources={name: amount}, of a worker");
        let Node::Worker(worker) = asker else {
            return Err(wrong);
        };
        let Some(Value::Dict(entries)) = arguments.get("resources") else {
            return Err(wrong);
        };
        let mut resources = Vec::new();
        for entry in entries {
            match entry {
                (Value::Str(name), Value::Float(amount)) if *amount >= 0.0 => {
                    resources.push((name.clone(), *amount));
                }
                _ => return Err(wrong),
            }
        }
        let Some(node) = self.workers.get_mut(worker) else {
            return Err(wrong);
        };
        node.resources.clone_from(&resources);
        let resources = resources.into_iter();
        let resources = resources.map(|(name, amount)| (self.symbols.intern(&name), amount));
        let resources = resources.collect();
        self.feed(Event::Offer { worker, resources })?;
        Ok(Some(Value::None))
    }

    /// The workers with the fewest bytes.
    fn emptiest(&self, count: usize) -> Vec<WorkerId> {
        let mut workers: Vec<(u64, WorkerId)> = self
            .scheduler
            .workers()
            .map(|view| (view.bytes(), view.id()))
            .collect();
        workers.sort_unstable();
        workers.into_iter().map(|(_, id)| id).take(count).collect()
    }

    /// Workers end at once.
    pub(crate) fn close_worker(&mut self, arguments: &Arguments) -> Answered {
        let workers = match arguments.text("worker").or(arguments.text("address")) {
            Some(name) => self.workers.find(name).into_iter().collect(),
            None if arguments.get("workers").is_some() => self.named_workers(arguments),
            None => return Err(OperationError::Invalid("which worker? worker=…")),
        };
        let count = workers.len();
        for worker in workers {
            let leave = ToWorker::Leave {
                cause: Leave::Asked,
                reason: "it was asked to close".into(),
            };
            self.tell_worker(worker, leave);
            self.losing.push((worker, Cause::Drained, String::new()));
        }
        Ok(Some(int(count)))
    }

    /// Everything is cancelled and dropped.
    pub(crate) fn restart(&mut self) -> Answered {
        let reason = Value::Tuple(vec![
            Value::str("scheduler-restart"),
            Value::str("the scheduler was restarted"),
        ]);
        self.reason = reason.to_bytes().into();
        self.feed_own(Event::Restart);
        self.reason = bytes::Bytes::new();
        for client in self.clients.ids() {
            self.tell_client(client, ToClient::Restarted);
        }
        self.inform_sidecar("restarted", Value::Dict(Vec::new()));
        Ok(Some(Value::None))
    }

    /// The asker starts workers of these names, and will say how they end.
    pub(crate) fn supervise(&mut self, arguments: &Arguments) -> Answered {
        for name in arguments.list("names").unwrap_or_default() {
            if let Value::Str(name) = name {
                self.workers.supervised.insert(name.clone());
            }
        }
        Ok(Some(Value::None))
    }

    /// A worker's process has ended, says who started it.
    pub(crate) fn told_of_exit(&mut self, arguments: &Arguments) -> Answered {
        let name = match arguments.get("name") {
            Some(Value::Str(name)) => name.clone(),
            Some(Value::Int(name)) => name.to_string(),
            _ => return Err(OperationError::Invalid("which worker has exited? name=…")),
        };
        let signal = arguments.integer("signal");
        let code = arguments.integer("exitcode").or(arguments.integer("code"));
        let narrow = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
        let cause = match (signal, code) {
            _ if arguments.is_set("oom") => Cause::OutOfMemory,
            (Some(signal), _) => Cause::Signal(narrow(signal)),
            (None, Some(code)) if code < 0 => Cause::Signal(narrow(-code)),
            (None, Some(code)) => Cause::Exited(narrow(code)),
            (None, None) => Cause::Unreachable,
        };
        let log = arguments.text("log").unwrap_or_default().to_owned();
        let is_known = self.worker_exited(&name, arguments.integer("pid"), cause, log);
        Ok(Some(dict([("known", Value::Bool(is_known))])))
    }

    /// A worker that was to leave is gone.
    pub(crate) fn retired(&mut self, worker: WorkerId) {
        self.waiting.gone(worker);
        self.look_after_waiting();
    }
}
