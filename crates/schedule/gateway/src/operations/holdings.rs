//! Who has what.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use treadle_types::keys::prefix;
use treadle_types::{TaskId, Value, WorkerId};

use super::{Answered, Arguments, int};
use crate::nodes::Node;
use crate::state::Core;

impl Core {
    /// The tasks of keys, or all.
    pub(super) fn tasks_of(&self, arguments: &Arguments) -> Vec<(Value, Option<TaskId>)> {
        match arguments.keys() {
            Some(keys) => {
                let keys = keys.iter();
                keys.map(|key| (key.clone(), self.task_of(key))).collect()
            }
            None => {
                let mut tasks: Vec<_> = self.keys.tasks().collect();
                tasks.sort_unstable();
                let entry = |task| (self.key(task), Some(task));
                tasks.into_iter().map(entry).collect()
            }
        }
    }

    /// Addresses of the workers that have values, by key.
    pub(crate) fn who_has(&mut self, asker: Node, arguments: &Arguments) -> Answered {
        let mut entries = Vec::new();
        for (key, task) in self.tasks_of(arguments) {
            let holders = task.map_or_else(Vec::new, |task| self.whereabouts(task));
            if let Node::Client(client) = asker {
                // It may be about to fetch the value there.
                self.introduce_to_client(client, &holders);
            }
            let holders = holders.into_iter().map(|worker| self.address(worker));
            let holders = holders.collect();
            entries.push((key, Value::List(holders)));
        }
        Ok(Some(Value::Dict(entries)))
    }

    /// Keys of the values that workers have, by address.
    pub(crate) fn has_what(&self, arguments: &Arguments) -> Answered {
        let mut held: BTreeMap<WorkerId, Vec<TaskId>> = BTreeMap::new();
        for task in self.keys.tasks() {
            for worker in self.whereabouts(task) {
                held.entry(worker).or_default().push(task);
            }
        }
        let mut entries = Vec::new();
        for worker in self.named_workers(arguments) {
            let mut held = held.remove(&worker).unwrap_or_default();
            held.sort_unstable();
            let keys = held.into_iter().map(|task| self.key(task)).collect();
            entries.push((self.address(worker), Value::List(keys)));
        }
        Ok(Some(Value::Dict(entries)))
    }

    /// The encodings of small values, which live here, by key. Keys without one are left out.
    pub(crate) fn small_values(&self, arguments: &Arguments) -> Answered {
        let tasks = self.tasks_of(arguments).into_iter();
        let small = tasks.filter_map(|(key, task)| {
            let value = self.scheduler.task(task?)?.inline()?;
            Some((key, Value::Bytes(value.to_vec())))
        });
        Ok(Some(Value::Dict(small.collect())))
    }

    /// The names, for workers, of values that are at workers, by key. Keys without one are left out.
    pub(crate) fn objects(&self, arguments: &Arguments) -> Answered {
        let tasks = self.tasks_of(arguments).into_iter();
        let objects = tasks.filter_map(|(key, task)| {
            let view = self.scheduler.task(task?)?;
            let is_there = view.inline().is_none() && !self.whereabouts(task?).is_empty();
            is_there.then(|| (key, int(view.object().to_u64())))
        });
        Ok(Some(Value::Dict(objects.collect())))
    }

    /// Bytes of values by key, or by function.
    pub(crate) fn nbytes(&self, arguments: &Arguments) -> Answered {
        let is_summary = arguments.is_set("summary");
        let mut entries = Vec::new();
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (key, task) in self.tasks_of(arguments) {
            let Some(task) = task else {
                continue;
            };
            let Some(nbytes) = self.scheduler.task(task).and_then(|view| view.nbytes()) else {
                continue;
            };
            if is_summary {
                *sums.entry(prefix(&key.to_bytes()).to_owned()).or_default() += nbytes;
            } else {
                entries.push((key, int(nbytes)));
            }
        }
        let sums = sums
            .into_iter()
            .map(|(name, sum)| (Value::Str(name), int(sum)));
        entries.extend(sums);
        Ok(Some(Value::Dict(entries)))
    }

    /// Bytes of the values that workers have, by address: small ones, which live here, where they are for
    /// people.
    pub(crate) fn managed(&self, arguments: &Arguments) -> Answered {
        let mut bytes: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for task in self.keys.tasks() {
            let nbytes = self.scheduler.task(task).and_then(|view| view.nbytes());
            let Some(nbytes) = nbytes else {
                continue;
            };
            for worker in self.whereabouts(task) {
                *bytes.entry(worker).or_default() += nbytes;
            }
        }
        let workers = self.named_workers(arguments).into_iter();
        let entry = |worker| {
            let nbytes = bytes.get(&worker).copied().unwrap_or_default();
            (self.address(worker), int(nbytes))
        };
        Ok(Some(Value::Dict(workers.map(entry).collect())))
    }

    /// Keys of the tasks that were sent to workers, by address.
    pub(crate) fn processing(&self, arguments: &Arguments) -> Answered {
        let mut entries = Vec::new();
        for worker in self.named_workers(arguments) {
            let tasks = self.scheduler.worker(worker).map(|view| view.assigned());
            let tasks = tasks.unwrap_or_default().into_iter();
            let keys = tasks.map(|task| self.key(task)).collect();
            entries.push((self.address(worker), Value::List(keys)));
        }
        Ok(Some(Value::Dict(entries)))
    }
}
