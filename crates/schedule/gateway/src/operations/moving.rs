//! Values that move between workers.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use treadle_scheduler::{Event, State};
use treadle_types::{Runs, TaskId, Value, WorkerId};

use super::{Answered, Arguments, OperationError, dict};
use crate::nodes::Node;
use crate::state::Core;
use crate::waiting::Wanted;

fn good() -> Value {
    dict([("status", Value::str("OK"))])
}

/// What distributed says of keys that it cannot do anything with.
fn missing(keys: Vec<Value>) -> Value {
    dict([
        ("status", Value::str("partial-fail")),
        ("keys", Value::List(keys)),
    ])
}

impl Core {
    /// The tasks of keys, and the keys that have no value.
    fn finished(&self, arguments: &Arguments) -> (Vec<TaskId>, Vec<Value>) {
        let (mut tasks, mut lost) = (Vec::new(), Vec::new());
        for key in arguments.keys().unwrap_or_default() {
            let task = self.task_of(key).and_then(|task| self.scheduler.task(task));
            match task {
                Some(view) if view.state() == State::Memory => tasks.push(view.id()),
                _ => lost.push(key.clone()),
            }
        }
        (tasks, lost)
    }

    /// The workers that are named; as with distributed, a host stands for all workers there.
    fn workers_on(&self, arguments: &Arguments) -> Vec<WorkerId> {
        let mut workers = self.named_workers(arguments);
        for name in arguments.list("workers").unwrap_or_default() {
            if let Value::Str(host) = name
                && self.workers.find(host).is_none()
            {
                workers.extend(self.workers.at(host));
            }
        }
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Values shall be at so many workers. Answered when they are.
    pub(crate) fn replicate(&mut self, asker: Node, id: u64, arguments: &Arguments) -> Answered {
        let (tasks, lost) = self.finished(arguments);
        if !lost.is_empty() {
            return Ok(Some(missing(lost)));
        }
        let mut among = match arguments.get("workers") {
            Some(_) => self.workers_on(arguments),
            None => Vec::new(),
        };
        if among.is_empty() && arguments.get("workers").is_some() {
            return Err(OperationError::Invalid("none of these workers is here"));
        }
        // Paused workers get no copies as long as there are others.
        let meant: Vec<_> = match among.is_empty() {
            true => self.workers.iter().map(|node| node.id).collect(),
            false => among.clone(),
        };
        let running = meant.iter().filter(|&&worker| self.is_running(worker));
        let running: Vec<_> = running.copied().collect();
        if !running.is_empty() && running.len() < meant.len() {
            among = running;
        }
        let most = if among.is_empty() {
            self.workers.len()
        } else {
            among.len()
        };
        let copies = match arguments.integer("n") {
            Some(copies) if copies < 1 => {
                return Err(OperationError::Invalid(
                    "a value must be at one worker at least: n=…",
                ));
            }
            Some(copies) => usize::try_from(copies).unwrap_or(usize::MAX).min(most),
            None => most,
        };
        // Small values live here: copies of them are a matter of names.
        let (small, tasks): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| self.is_small(*task));
        for task in small {
            let is_meant = |worker: &WorkerId| among.is_empty() || among.contains(worker);
            let (mut workers, elsewhere): (Vec<_>, Vec<_>) =
                self.whereabouts(task).into_iter().partition(is_meant);
            let others = match among.is_empty() {
                true => self.scheduler.workers().map(|worker| worker.id()).collect(),
                false => among.clone(),
            };
            for worker in others {
                if !workers.contains(&worker) {
                    workers.push(worker);
                }
            }
            workers.truncate(copies);
            workers.extend(elsewhere);
            self.spread.insert(task, workers);
        }
        self.feed(Event::Replicate {
            tasks: tasks.clone(),
            copies: copies as u32,
            among: among.clone(),
        })?;
        let wanted = tasks
            .into_iter()
            .map(|task| (task, self.keys.generation(task)))
            .collect();
        self.answer_when(asker, id, Wanted::Copies(wanted, copies, among), good())
    }

    /// A client has brought values to workers, given as runs of their numbers, who say that they have
    /// them. Answered when they have said it here.
    pub(crate) fn held(&mut self, asker: Node, id: u64, arguments: &Arguments) -> Answered {
        let numbers = arguments.list("workers").unwrap_or_default().iter();
        let numbers: Option<Vec<u64>> = numbers
            .map(|number| match number {
                Value::Int(number) => u64::try_from(*number).ok(),
                _ => None,
            })
            .collect();
        let workers = numbers.and_then(|numbers| Runs::from_gaps(&numbers).ok());
        let what = "held: workers=[…] are runs of numbers";
        let workers = workers.ok_or(OperationError::Invalid(what))?;
        let keys = arguments.keys().unwrap_or_default().iter();
        let tasks = keys.filter_map(|key| self.task_of(key));
        let tasks = tasks.map(|task| (task, self.keys.generation(task)));
        let wanted = Wanted::Held(tasks.collect(), workers);
        self.answer_when(asker, id, wanted, Value::None)
    }

    /// Values move: `{"moves": [(key, from, to)]}`.
    pub(crate) fn move_values(&mut self, asker: Node, id: u64, arguments: &Arguments) -> Answered {
        let mut moves = Vec::new();
        for entry in arguments.list("moves").unwrap_or_default() {
            let (Value::Tuple(parts) | Value::List(parts)) = entry else {
                return Err(OperationError::Invalid(
                    "move: each move is (key, from, to)",
                ));
            };
            let [key, Value::Str(from), Value::Str(to)] = &parts[..] else {
                return Err(OperationError::Invalid(
                    "move: each move is (key, from, to)",
                ));
            };
            let found = (
                self.task_of(key),
                self.workers.find(from),
                self.workers.find(to),
            );
            let (Some(task), Some(from), Some(to)) = found else {
                return Ok(Some(missing(vec![key.clone()])));
            };
            moves.push((task, from, to));
        }
        self.carry_out(asker, id, moves)
    }

    fn carry_out(
        &mut self,
        asker: Node,
        id: u64,
        moves: Vec<(TaskId, WorkerId, WorkerId)>,
    ) -> Answered {
        let mut wanted = Vec::with_capacity(moves.len());
        for (task, from, to) in moves {
            wanted.push((task, self.keys.generation(task), from));
            self.feed(Event::Move { task, from, to })?;
        }
        self.answer_when(asker, id, Wanted::Moved(wanted), good())
    }

    fn answer_when(&mut self, asker: Node, id: u64, wanted: Wanted, answer: Value) -> Answered {
        if !self.waiting.add(self.now, asker, id, wanted, answer) {
            return Err(OperationError::Crowded);
        }
        self.look_after_waiting();
        Ok(None)
    }

    /// Values move until each worker has about the same share of its memory in use. As distributed
    /// does it: from the worker that has the most above the mean to the one that has the most below,
    /// values that have one holder, largest first where they fit.
    pub(crate) fn rebalance(&mut self, asker: Node, id: u64, arguments: &Arguments) -> Answered {
        let (tasks, lost) = match arguments.keys() {
            Some(_) => self.finished(arguments),
            None => {
                let tasks = self.scheduler.tasks();
                let there = tasks.filter(|task| task.state() == State::Memory);
                (there.map(|task| task.id()).collect(), Vec::new())
            }
        };
        if !lost.is_empty() {
            return Ok(Some(missing(lost)));
        }
        let workers = self.named_workers(arguments);
        let workers: Vec<_> = workers
            .into_iter()
            .filter(|w| self.is_running(*w))
            .collect();
        if workers.len() < 2 {
            return Ok(Some(good()));
        }
        let (small, tasks): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| self.is_small(*task));
        self.spread_small(&small, &workers);
        let mut bytes: BTreeMap<WorkerId, u64> = workers.iter().map(|w| (*w, 0)).collect();
        for worker in &workers {
            if let Some(view) = self.scheduler.worker(*worker) {
                bytes.insert(*worker, view.bytes());
            }
        }
        let mean = bytes.values().sum::<u64>() / workers.len() as u64;
        let mut movable: BTreeMap<WorkerId, Vec<(u64, TaskId)>> = BTreeMap::new();
        for task in tasks {
            let Some(view) = self.scheduler.task(task) else {
                continue;
            };
            let holders: Vec<WorkerId> = view.holders().collect();
            if let ([holder], false) = (&holders[..], view.is_actor())
                && bytes.contains_key(holder)
            {
                let entry = (view.nbytes().unwrap_or(0), task);
                movable.entry(*holder).or_default().push(entry);
            }
        }
        let mut moves = Vec::new();
        for values in movable.values_mut() {
            values.sort_unstable_by(|a, b| b.cmp(a));
        }
        for (from, values) in movable {
            for (nbytes, task) in values {
                let above = bytes[&from].saturating_sub(mean);
                if nbytes == 0 || nbytes > above {
                    continue;
                }
                let emptiest = bytes.iter().filter(|(to, _)| **to != from);
                let Some((&to, &has)) = emptiest.min_by_key(|(to, has)| (**has, **to)) else {
                    break;
                };
                // It must not make the other one the fuller of the two.
                if has + nbytes > mean + nbytes / 2 {
                    continue;
                }
                *bytes.entry(from).or_default() -= nbytes;
                *bytes.entry(to).or_default() += nbytes;
                moves.push((task, from, to));
            }
        }
        if moves.is_empty() {
            return Ok(Some(good()));
        }
        self.carry_out(asker, id, moves)
    }

    /// Whether it has a value that lives here.
    fn is_small(&self, task: TaskId) -> bool {
        let view = self.scheduler.task(task);
        view.is_some_and(|view| view.inline().is_some())
    }

    /// Names other workers for small values, which live here, until each has about as many.
    fn spread_small(&mut self, small: &[TaskId], workers: &[WorkerId]) {
        let mut counts: BTreeMap<WorkerId, usize> = workers.iter().map(|w| (*w, 0)).collect();
        for task in self.keys.tasks() {
            if self.is_small(task) {
                for worker in self.whereabouts(task) {
                    if let Some(count) = counts.get_mut(&worker) {
                        *count += 1;
                    }
                }
            }
        }
        let mean = counts.values().sum::<usize>() / workers.len().max(1);
        for &task in small {
            let [from] = self.whereabouts(task)[..] else {
                continue;
            };
            let Some(&many) = counts.get(&from) else {
                continue;
            };
            let least = counts
                .iter()
                .min_by_key(|(worker, count)| (**count, **worker));
            if let Some((&to, &few)) = least
                && many > mean
                && few < mean
            {
                counts.insert(from, many - 1);
                counts.insert(to, few + 1);
                self.spread.insert(task, vec![to]);
            }
        }
    }
}
