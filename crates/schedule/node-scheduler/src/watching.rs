//! What the scheduler's thread knows of the cluster's doings, for the one that watches.

use std::time::Duration;

use bytes::Bytes;
use treadle_gateway::{Node, OperationError, int};
use treadle_messages::{Batch, Call};
use treadle_reactor::clock;
use treadle_schedule_wire::trace::SIGHT;
use treadle_scheduler::{Counts, State};
use treadle_shuffle_history::Trouble;
use treadle_sight::{Event, OTHERS, Shuffle, Snapshot, SpanRow, States, WorkerState, about_error};
use treadle_types::{Cause, ClientId, Failure, ObjectId, TaskId, Value, WorkerId, keys};

use super::hub::Hub;
use super::sight::{Facts, Step, Submitted};
use super::state::STATUSES;

/// How often the cluster is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Shuffles of one look.
const MOST_SHUFFLES: usize = 32;
/// Inputs and places of a task that are named.
const MOST_NAMED: usize = 50;

/// How the tasks of a group are.
fn states(counts: &Counts) -> States {
    let count = |state: State| counts[state as usize];
    States {
        released: count(State::Released),
        waiting: count(State::Waiting),
        ready: count(State::Ready),
        assigned: count(State::Assigned) + count(State::Retracting),
        memory: count(State::Memory),
        failed: count(State::Failed),
        forgotten: count(State::Forgotten),
    }
}

impl Hub {
    /// Whether this is what a worker recorded: then it is left for whoever watches, unread. The answer is
    /// the clock.
    #[inline]
    pub(super) fn take_records(
        &mut self,
        asker: Node,
        call: &Call,
    ) -> Option<Result<Value, OperationError>> {
        if call.operation != SIGHT {
            return None;
        }
        let Node::Worker(worker) = asker else {
            return Some(Err(OperationError::Invalid("sight: only workers record")));
        };
        let Some(sight) = self.sight.as_ref().filter(|sight| !sight.is_over()) else {
            // Then workers record no more.
            return Some(Err(OperationError::Invalid(
                "sight: nothing is recorded here",
            )));
        };
        let now = clock::monotonic();
        sight.batch(worker, call.argument.clone());
        Some(Ok(int(now)))
    }

    /// A client submits tasks.
    #[inline]
    pub(super) fn watch_submission(&self, client: ClientId, batch: &Batch) {
        if let Some(sight) = &self.sight {
            sight.submitted(Submitted::of(client, batch));
        }
    }

    /// A task raised.
    #[cold]
    pub(super) fn watch_failure(&self, worker: WorkerId, object: ObjectId, error: &Bytes) {
        if let Some(sight) = &self.sight
            && let Some((key, _)) = self.core.key_and_function(object.task)
        {
            sight.raised(worker, object, key, error);
        }
    }

    /// A task was given up.
    pub(super) fn watch_doom(&self, key: &[u8], text: &str) {
        if let Some(sight) = &self.sight {
            let key = Value::from_bytes(key).map(|key| keys::display(&key));
            sight.event(Event::Doomed {
                key: about_error(key.as_deref().unwrap_or("(an unreadable key)")),
                text: about_error(text),
            });
        }
    }

    /// A worker has joined.
    pub(super) fn watch_join(&self, worker: WorkerId) {
        if let Some(sight) = &self.sight
            && let Some(node) = self.core.worker(worker)
        {
            sight.event(Event::Joined {
                worker,
                name: node.name.clone(),
                address: node.address.clone(),
                host: node.host.clone(),
                pid: node.pid().and_then(|pid| pid.try_into().ok()).unwrap_or(0),
                threads: node.threads,
                memory: node.memory,
            });
        }
    }

    /// A worker is gone.
    pub(super) fn watch_loss(&self, worker: WorkerId, cause: &Cause) {
        if let Some(sight) = &self.sight {
            sight.event(Event::Lost {
                worker,
                cause: cause.to_string(),
                drained: matches!(cause, Cause::Drained | Cause::Exited(0)),
            });
        }
    }

    /// Time has passed: how the cluster is.
    pub(super) fn watch_tick(&mut self) {
        let Some(sight) = &self.sight else {
            return;
        };
        if self.now < self.watched + EVERY {
            return;
        }
        self.watched = self.now;
        let scheduler = self.core.scheduler();
        let tasks = [
            scheduler.count(State::Waiting),
            scheduler.count(State::Ready),
            scheduler.count(State::Assigned) + scheduler.count(State::Retracting),
            scheduler.count(State::Memory),
            scheduler.count(State::Failed),
        ];
        let workers = self.core.workers().filter_map(|node| {
            let view = scheduler.worker(node.id)?;
            let health = view.health();
            let status = STATUSES
                .iter()
                .position(|(known, _)| *known == view.status());
            Some(WorkerState {
                worker: node.id.0,
                status: status.unwrap_or(0) as u8,
                managed: health.managed,
                process: health.process,
                spilled: health.spilled,
                tasks: view.assigned_count() as u64,
                values: view.held().len() as u64,
                silent: self.now.saturating_sub(node.heard).as_millis() as u64,
            })
        });
        sight.event(Event::Snapshot(Snapshot {
            tasks: tasks.map(|count| count as u64),
            workers: workers.collect(),
        }));
        let groups = scheduler.groups();
        self.told.resize(groups.len(), Counts::default());
        let groups = self.told.iter_mut().zip(groups).zip(0..);
        let changed = groups.filter(|((told, counts), _)| *told != *counts);
        let changed = changed.map(|((told, counts), group)| {
            *told = *counts;
            let name = self.core.group_name(group).unwrap_or(OTHERS);
            (name.to_owned(), states(counts))
        });
        let changed: Vec<_> = changed.collect();
        if !changed.is_empty() {
            sight.event(Event::States(changed));
        }
        for (name, record) in self.core.running_shuffles().take(MOST_SHUFFLES) {
            let tally = record.committed.unwrap_or(record.moved);
            let sizes = record.sizes.as_ref();
            let largest = sizes.and_then(|sizes| sizes.largest.first());
            let losses = record.troubles.iter();
            let losses = losses.filter(|(_, trouble)| matches!(trouble, Trouble::Lost(_)));
            sight.event(Event::Shuffle(Shuffle {
                name: name.to_owned(),
                bytes: tally.bytes,
                partitions: record.partitions.into(),
                largest: largest.map_or(0, |(_, bytes)| *bytes),
                servers: record.servers.len() as u64,
                losses: losses.count() as u64,
            }));
        }
    }

    fn text_of(&self, task: TaskId) -> Option<String> {
        let (key, _) = self.core.key_and_function(task)?;
        Value::from_bytes(key).ok().map(|key| keys::display(&key))
    }

    fn names_of(&self, tasks: impl Iterator<Item = TaskId>) -> Vec<String> {
        let tasks = tasks.take(MOST_NAMED);
        tasks.filter_map(|task| self.text_of(task)).collect()
    }

    /// What is known of the task of a key, by its text.
    pub(super) fn facts_of(&self, text: &str) -> Option<Facts> {
        let found = keys::parse(text).into_iter();
        let task = found
            .filter_map(|key| self.core.task(&key.to_bytes()))
            .next()?;
        let scheduler = self.core.scheduler();
        let view = scheduler.task(task)?;
        let name = |worker: WorkerId| {
            let name = scheduler.worker_name(worker)?;
            Some(self.core.text(name).to_owned())
        };
        let places = view.holders().chain(view.worker()).take(MOST_NAMED);
        let started = self.core.settings().started;
        let story = scheduler.story(task);
        let sent = story.iter().filter(|step| step.state == State::Assigned);
        let runs = sent.count().max(1) as u32;
        let steps = story.into_iter().map(|step| Step {
            time: (started + step.time).as_secs_f64(),
            state: step.state.name(),
            worker: step.worker.and_then(name),
        });
        let raised = match view.failure().map(|failure| &**failure) {
            Some(Failure::Raised { error, .. }) => Some(error.clone()),
            _ => None,
        };
        Some(Facts {
            key: self.text_of(task).unwrap_or_default(),
            object: view.object().to_u64(),
            runs,
            state: view.state().name(),
            workers: places.filter_map(name).collect(),
            story: steps.collect(),
            nbytes: view.nbytes(),
            inputs: self.names_of(view.inputs()),
            raised,
        })
    }

    /// A span, with its key and those of the inputs, as far as its task is still known by that number.
    pub(super) fn key_of_span(&self, span: &mut SpanRow) -> Vec<String> {
        let object = ObjectId::from_u64(span.object);
        let view = self.core.scheduler().task(object.task);
        // A number that was used again goes on with the attempts.
        let Some(view) = view.filter(|view| view.attempt() == object.attempt) else {
            return Vec::new();
        };
        if span.key.is_none() {
            span.key = self.text_of(object.task);
        }
        self.names_of(view.inputs())
    }
}
