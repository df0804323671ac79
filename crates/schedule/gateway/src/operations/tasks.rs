//! How tasks stand.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_scheduler::{Event, State, TaskView};
use treadle_types::{Symbol, TaskId, Value};

use super::{Answered, Arguments, OperationError, dict, int};
use crate::definitions::Used;
use crate::keys::NO_DEFINITIONS;
use crate::nodes::Node;
use crate::state::Core;

impl Core {
    /// What is remembered of keys: a list of dictionaries, the oldest first.
    pub(crate) fn story(&self, arguments: &Arguments) -> Answered {
        let mut steps = Vec::new();
        for key in arguments.keys().unwrap_or_default() {
            let Some(task) = self.task_of(key) else {
                continue;
            };
            for step in self.scheduler.story(task) {
                steps.push((step, key));
            }
        }
        steps.sort_by_key(|(step, _)| (step.time, step.cause));
        let step = |(step, key): (treadle_scheduler::Transition, &Value)| {
            let worker = step
                .worker
                .and_then(|worker| self.scheduler.worker_name(worker));
            let worker = worker.map(|name| Value::Str(self.symbols.text(name).to_owned()));
            dict([
                ("key", key.clone()),
                ("state", Value::str(step.state.name())),
                ("worker", worker.unwrap_or(Value::None)),
                (
                    "time",
                    Value::Float((self.settings.started + step.time).as_secs_f64()),
                ),
                ("cause", int(step.cause)),
            ])
        };
        Ok(Some(Value::List(steps.into_iter().map(step).collect())))
    }

    /// What is known of tasks, those of keys or all: a list of dictionaries; with `names`, the keys
    /// alone. Keys without a task are left out.
    pub(crate) fn list_tasks(&self, arguments: &Arguments) -> Answered {
        let tasks = self.tasks_of(arguments).into_iter();
        let tasks = tasks.filter_map(|(key, task)| Some((key, self.scheduler.task(task?)?)));
        if arguments.is_set("names") {
            return Ok(Some(Value::List(tasks.map(|(key, _)| key).collect())));
        }
        let tasks = tasks.map(|(key, view)| self.describe(key, view));
        Ok(Some(Value::List(tasks.collect())))
    }

    fn describe(&self, key: Value, view: TaskView<'_>) -> Value {
        let text = |symbol: Symbol| Value::Str(self.symbols.text(symbol).to_owned());
        let constraint = view.constraint().cloned().unwrap_or_default();
        let resources = constraint.resources.into_iter();
        let resources = resources.map(|(name, amount)| (text(name), Value::Float(amount)));
        let holders = self.whereabouts(view.id()).into_iter();
        let clients = view.wanted_by();
        let clients = clients.filter_map(|client| Some(self.clients.get(client)?.name.clone()));
        let place = view.priority();
        dict([
            ("key", key),
            ("state", Value::str(view.state().name())),
            (
                "dependencies",
                Value::List(view.inputs().map(|task| self.key(task)).collect()),
            ),
            (
                "dependents",
                Value::List(view.dependents().map(|task| self.key(task)).collect()),
            ),
            (
                "who_has",
                Value::List(holders.map(|worker| self.address(worker)).collect()),
            ),
            ("who_wants", Value::List(clients.map(Value::Str).collect())),
            (
                "processing_on",
                view.worker().map_or(Value::None, |id| self.address(id)),
            ),
            ("nbytes", view.nbytes().map_or(Value::Int(-1), int)),
            ("attempt", int(view.attempt().0)),
            ("retries", int(view.retries())),
            ("suspicious", int(view.losses())),
            ("actor", Value::Bool(view.is_actor())),
            ("seceded", Value::Bool(view.is_seceded())),
            ("scattered", Value::Bool(view.is_put())),
            ("small", Value::Bool(view.inline().is_some())),
            ("class", Value::Bytes(view.class().to_vec())),
            (
                "priority",
                Value::Tuple(vec![
                    int(place.user),
                    int(place.submission),
                    int(place.rank),
                ]),
            ),
            (
                "restrictions",
                Value::List(constraint.workers.into_iter().map(text).collect()),
            ),
            ("loose", Value::Bool(constraint.allow_other)),
            ("resources", Value::Dict(resources.collect())),
        ])
    }

    /// How many tasks of each function are in each state: of all tasks, or of keys and what they
    /// are computed from.
    pub(crate) fn progress(&mut self, arguments: &Arguments) -> Answered {
        let mut counts: BTreeMap<Symbol, [u64; State::ALL.len()]> = BTreeMap::new();
        let mut count = |function, state: State| {
            counts.entry(function).or_default()[state as usize] += 1;
        };
        match arguments.keys() {
            None => {
                for task in self.scheduler.tasks() {
                    count(task.function(), task.state());
                }
            }
            Some(keys) => {
                let tasks = keys.iter().filter_map(|key| self.task_of(key)).collect();
                for task in self.upstream(tasks) {
                    if let Some(view) = self.scheduler.task(task) {
                        count(view.function(), view.state());
                    }
                }
            }
        }
        let entries = counts.into_iter().map(|(function, counts)| {
            let states = State::ALL.into_iter().zip(counts);
            let states = states.filter(|(_, count)| *count > 0);
            let states = states.map(|(state, count)| (Value::str(state.name()), int(count)));
            let name = self.symbols.text(function).to_owned();
            (Value::Str(name), Value::Dict(states.collect()))
        });
        Ok(Some(Value::Dict(entries.collect())))
    }

    /// What there is to do, for whoever scales the cluster: how many tasks are `ready` and `assigned`,
    /// how many `seconds` they take by what was seen of their functions, and how many are of functions
    /// that were never seen to end.
    pub(crate) fn load(&self) -> Answered {
        let learnt: BTreeMap<Symbol, Duration> = self
            .scheduler
            .learnt()
            .map(|(function, duration, _)| (function, duration))
            .collect();
        let (mut ready, mut assigned, mut unknown) = (0_u64, 0_u64, 0_u64);
        let mut seconds = 0.0;
        for task in self.scheduler.tasks() {
            match task.state() {
                State::Ready => ready += 1,
                State::Assigned | State::Retracting => assigned += 1,
                _ => continue,
            }
            match learnt.get(&task.function()) {
                Some(duration) => seconds += duration.as_secs_f64(),
                None => unknown += 1,
            }
        }
        Ok(Some(dict([
            ("ready", int(ready)),
            ("assigned", int(assigned)),
            ("seconds", Value::Float(seconds)),
            ("unknown", int(unknown)),
        ])))
    }

    /// For whoever ends an idle cluster: how many tasks are `unfinished`, how many questions between nodes
    /// are open (`calls`), and a number that grows with what is `done`. It does not count tasks one by one.
    pub(crate) fn activity(&self) -> Answered {
        let states = [
            State::Waiting,
            State::Ready,
            State::Assigned,
            State::Retracting,
        ];
        let unfinished = states.iter().map(|&state| self.scheduler.count(state));
        let counts = self.counts();
        Ok(Some(dict([
            ("unfinished", int(unfinished.sum::<usize>())),
            ("calls", int(self.open_calls())),
            ("done", int(counts.submitted + counts.commands)),
        ])))
    }

    /// What a task runs: its recipe, the definitions that this refers to, and its inputs. Nothing of
    /// a task that has none any more.
    pub(crate) fn recipe(&self, arguments: &Arguments) -> Answered {
        let key = arguments.keys().and_then(<[Value]>::first);
        let task = key.and_then(|key| self.task_of(key));
        let Some((task, view)) = task.and_then(|task| Some((task, self.scheduler.task(task)?)))
        else {
            return Err(OperationError::Invalid(
                "recipe: there is no task of this key",
            ));
        };
        let recipe = view.recipe();
        if recipe.is_empty() {
            return Ok(Some(Value::None));
        }
        let entry = self.keys.get(task);
        let note = entry.map_or(NO_DEFINITIONS, |entry| entry.definitions);
        let one;
        let places: &[u32] = match self.definitions.used(note) {
            Used::None => &[],
            Used::One(place) => {
                one = [place];
                &one
            }
            Used::Many(places) => places,
        };
        let definitions = places
            .iter()
            .filter_map(|place| self.definitions.get(*place));
        let definitions = definitions.map(|d| (int(d.number), Value::Bytes(d.pickle.to_vec())));
        Ok(Some(dict([
            ("recipe", Value::Bytes(recipe.to_vec())),
            ("definitions", Value::Dict(definitions.collect())),
            (
                "inputs",
                Value::List(view.inputs().map(|input| self.key(input)).collect()),
            ),
        ])))
    }

    fn is_sidecar(&self, asker: Node) -> bool {
        matches!(asker, Node::Client(client) if self.clients.sidecar == Some(client))
    }

    /// Whether clients shall tell the sidecar what they submit (`submissions`), and whether the sidecar
    /// is told of each step of tasks (`steps`). A client can ask for the latter, too.
    pub(crate) fn observe(&mut self, asker: Node, arguments: &Arguments) -> Answered {
        let is_sidecar = self.is_sidecar(asker);
        let (submissions, steps) = (arguments.get("submissions"), arguments.get("steps"));
        if !is_sidecar && (submissions.is_some() || steps != Some(&Value::Bool(true))) {
            return Err(OperationError::Invalid(
                "observe: only the scheduler's Python side decides on submissions, and ends steps",
            ));
        }
        if submissions.is_some() {
            self.observed = arguments.is_set("submissions");
        }
        if steps.is_some() {
            self.watched = arguments.is_set("steps");
            self.told.stop_dropping();
            self.scheduler.watch_steps(self.watched);
            self.scheduler.keep_lineage(self.watched);
        }
        Ok(Some(Value::None))
    }

    /// Somebody who is not connected wants keys, or wants them no more. The sidecar can also say that a
    /// client wants them no more.
    pub(crate) fn desire(
        &mut self,
        asker: Node,
        arguments: &Arguments,
        is_wanted: bool,
    ) -> Answered {
        let Some(name) = arguments.text("client") else {
            return Err(OperationError::Invalid("desire: in whose name? client=…"));
        };
        let keys = arguments.keys().unwrap_or_default();
        let tasks: Vec<TaskId> = keys.iter().filter_map(|key| self.task_of(key)).collect();
        let client = match self.clients.stand_ins.get(name) {
            Some(client) => *client,
            None if !is_wanted => match self.clients.find(name) {
                Some(client) if self.is_sidecar(asker) => client,
                _ => return Ok(Some(Value::None)),
            },
            None => {
                let client = self.clients.allocate();
                self.clients.stand_ins.insert(name.to_owned(), client);
                self.feed_own(Event::ClientJoined(client));
                client
            }
        };
        if let Some(node) = self.clients.get_mut(client) {
            for &task in tasks.iter().filter(|_| !is_wanted) {
                node.locals.unwant(task);
            }
        }
        let event = if is_wanted {
            Event::Want { client, tasks }
        } else {
            Event::Unwant { client, tasks }
        };
        self.feed(event)?;
        Ok(Some(Value::None))
    }

    /// Values of finished tasks are gone, says whoever keeps them. With `outputs`, so is all that was
    /// computed from them, as for a shuffle whose inputs have other rows.
    pub(crate) fn invalidate(&mut self, arguments: &Arguments) -> Answered {
        let keys = arguments.keys().unwrap_or_default();
        let tasks: Vec<TaskId> = keys.iter().filter_map(|key| self.task_of(key)).collect();
        let outputs = arguments.is_set("outputs");
        let derived = outputs.then(|| self.downstream(tasks.clone()));
        self.feed(match derived {
            Some(derived) => Event::Discard {
                gone: tasks,
                derived,
            },
            None => Event::Invalidate(tasks),
        })?;
        Ok(Some(Value::None))
    }
}
