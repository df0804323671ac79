//! What the scheduler's thread knows of the cluster's doings, for the one that watches.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use treadle_gateway::{Node, OperationError, int};
use treadle_messages::{Batch, Call};
use treadle_reactor::clock;
use treadle_schedule_wire::trace::SIGHT;
use treadle_scheduler::{Counts, State};
use treadle_shuffle_history::{Phase, Record, Trouble};
use treadle_sight::{
    Event, OTHERS, SHUFFLE_STATES, Shuffle, Snapshot, SpanRow, States, WorkerState, about_error,
};
use treadle_types::{Cause, ClientId, Failure, ObjectId, TaskId, Value, WorkerId, keys};

use super::hub::Hub;
use super::sight::{Facts, Step, Submitted};
use super::state::STATUSES;

/// How often the cluster is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Shuffles of one look. Others are told of when they end.
const MOST_SHUFFLES: usize = 256;
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

/// A shuffle, by its record; without an outcome it runs.
fn shuffle(name: &str, record: &Record, outcome: Option<&str>) -> Shuffle {
    let phase = match record.phase {
        Phase::Waiting => "waiting",
        Phase::Transfer => "transfer",
        Phase::Barrier => "barrier",
        Phase::Read => "read",
    };
    let state = outcome.unwrap_or(phase);
    let state = SHUFFLE_STATES.iter().position(|known| *known == state);
    let sizes = record.sizes.as_ref();
    let largest = sizes.and_then(|sizes| sizes.largest.first());
    let losses = record.troubles.iter();
    let losses = losses.filter(|(_, trouble)| matches!(trouble, Trouble::Lost(_)));
    Shuffle {
        number: record.shuffle.0,
        name: name.to_owned(),
        state: state.unwrap_or(0) as u8,
        inputs: record.maps.into(),
        transferred: record.transfers.saturating_sub(record.repeated),
        bytes: record.committed.unwrap_or(record.moved).bytes,
        partitions: record.partitions.into(),
        largest: largest.map_or(0, |(_, bytes)| *bytes),
        servers: record.servers.len() as u64,
        losses: losses.count() as u64,
        quantiles: sizes.map_or_else(Vec::new, |sizes| sizes.quantiles.clone()),
        bars: sizes.map_or_else(Vec::new, |sizes| sizes.bars.clone()),
        bar: sizes.map_or(0, |sizes| sizes.bar),
    }
}

/// What was told of groups and shuffles.
#[derive(Debug, Default)]
pub(super) struct Told {
    groups: Vec<Counts>,
    /// By number, while they run.
    shuffles: BTreeMap<u64, Shuffle>,
}

impl Told {
    /// Says how those groups are of which that has changed, through `leave`, which returns whether it was heard.
    fn tell(
        &mut self,
        groups: &[Counts],
        name: impl Fn(u16) -> String,
        leave: impl FnOnce(Event<'static>) -> bool,
    ) {
        self.groups.resize(groups.len(), Counts::default());
        let known = self.groups.iter().zip(groups).zip(0..);
        let changed = known.filter(|((told, counts), _)| told != counts);
        let changed = changed.map(|((_, counts), group)| (name(group), states(counts)));
        let changed: Vec<_> = changed.collect();
        if !changed.is_empty() && leave(Event::States(changed)) {
            self.groups.copy_from_slice(groups);
        }
    }

    /// Says how a shuffle is, if that has changed.
    fn shuffle(&mut self, shuffle: Shuffle, leave: impl FnOnce(Event<'static>) -> bool) {
        let is_new = self.shuffles.get(&shuffle.number) != Some(&shuffle);
        if is_new && leave(Event::Shuffle(shuffle.clone())) {
            self.shuffles.insert(shuffle.number, shuffle);
        }
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
        let now = int(clock::monotonic());
        // Who hears that it was dropped says again what is said once.
        Some(Ok(match sight.batch(worker, call.argument.clone()) {
            true => now,
            false => Value::Tuple(vec![now]),
        }))
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
        let name = |group| self.core.group_name(group).unwrap_or(OTHERS).to_owned();
        self.told
            .tell(scheduler.groups(), name, |event| sight.event(event));
        for (name, record) in self.core.running_shuffles().take(MOST_SHUFFLES) {
            let shuffle = shuffle(name, &record, None);
            self.told.shuffle(shuffle, |event| sight.event(event));
        }
    }

    /// Says how shuffles have ended since that was said last.
    pub(super) fn watch_ended_shuffles(&mut self) {
        let Some(sight) = &self.sight else {
            return;
        };
        while let Some(ended) = self.core.ended_shuffle() {
            let shuffle = shuffle(&ended.name, &ended.record, Some(ended.outcome));
            let number = shuffle.number;
            if !sight.event(Event::Shuffle(shuffle)) {
                return;
            }
            self.told.shuffles.remove(&number);
            self.core.ended_shuffle_told();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_heard_is_told_again() {
        let mut told = Told::default();
        let mut counts = Counts::default();
        counts[State::Memory as usize] = 5;
        let groups = [counts, Counts::default()];
        let mut tell = |groups: &[Counts], is_heard: bool| {
            let mut heard = None;
            let name = |group: u16| group.to_string();
            told.tell(groups, name, |event| {
                heard = Some(event);
                is_heard
            });
            heard
        };
        let expected = Some(Event::States(vec![("0".into(), states(&counts))]));
        assert_eq!(tell(&groups, false), expected);
        assert_eq!(tell(&groups, true), expected);
        assert_eq!(tell(&groups, true), None);
        assert_eq!(
            tell(&[counts, counts], true),
            Some(Event::States(vec![("1".into(), states(&counts))]))
        );
    }
}
