//! What shuffles leave behind: the master's record of each, with names, how it ended, and why.
//!
//! The latest are kept here. The sidecar is told of each, and keeps more of them in a file.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use treadle_scheduler::State;
use treadle_shuffle::ShuffleId;
use treadle_shuffle_history::{Names, Phase, Record, Recorder, Trouble};
use treadle_types::{Cause, Failure, TaskId, Value, WorkerId};

use super::registry::Name;
use crate::operations::Answered;
use crate::state::Core;

/// Shuffles that have ended and are remembered.
const MOST: usize = 256;

/// A shuffle that has ended.
#[derive(Clone, Debug)]
pub struct EndedShuffle {
    /// Its name.
    pub name: String,
    /// `finished`, `failed` or `cancelled`.
    pub outcome: &'static str,
    /// What is known of it.
    pub record: Record,
}

/// What the host engine knows of a shuffle, beside its record.
#[derive(Debug)]
struct About {
    name: Name,
    kind: String,
    client: Option<String>,
    /// The name of the tasks that read it.
    key: Option<String>,
    /// How many partitions these read, as far as is known.
    readers: u64,
    /// An earlier run of it was read: of this one only a part may be.
    is_again: bool,
    /// The stand-alone service that has its rows, and the rest of its record.
    service: Option<String>,
    /// Where it is held, and was: addresses.
    servers: BTreeMap<WorkerId, String>,
    /// Why some of them were lost.
    losses: BTreeMap<WorkerId, String>,
    /// Why its tasks failed.
    failure: Option<Value>,
}

#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) recorder: Recorder,
    about: BTreeMap<ShuffleId, About>,
    /// The latest that have ended.
    ended: VecDeque<Value>,
    /// Those of them that whoever watches was not told of.
    untold: VecDeque<EndedShuffle>,
}

/// What a client says of a shuffle, for people.
pub(super) struct Described<'a> {
    pub(super) name: &'a Name,
    pub(super) kind: &'a str,
    pub(super) client: Option<String>,
    pub(super) key: Option<String>,
    pub(super) is_again: bool,
    pub(super) service: Option<String>,
}

impl Records {
    pub(super) fn begun(&mut self, shuffle: ShuffleId, described: Described<'_>) {
        let about = About {
            name: described.name.clone(),
            kind: described.kind.to_owned(),
            client: described.client,
            key: described.key,
            readers: 0,
            is_again: described.is_again,
            service: described.service,
            servers: BTreeMap::new(),
            losses: BTreeMap::new(),
            failure: None,
        };
        self.about.insert(shuffle, about);
    }

    /// A task reads some partitions of it.
    pub(super) fn read_by(&mut self, shuffle: ShuffleId, readers: u64, key: Option<String>) {
        if let Some(about) = self.about.get_mut(&shuffle) {
            about.readers = readers;
            about.key = about.key.take().or(key);
        }
    }

    pub(super) fn held_at(
        &mut self,
        shuffle: ShuffleId,
        addresses: impl Iterator<Item = (WorkerId, String)>,
    ) {
        if let Some(about) = self.about.get_mut(&shuffle) {
            about.servers.extend(addresses);
        }
    }

    pub(super) fn lost(&mut self, worker: WorkerId, cause: &Cause) {
        for about in self.about.values_mut() {
            if about.servers.contains_key(&worker) {
                about.losses.insert(worker, cause.to_string());
            }
        }
    }
}

impl Core {
    /// Clients are told why a task failed. If it is one of a shuffle, that has failed, too.
    pub(crate) fn note_failure(&mut self, failure: &Failure) {
        if self.shuffles.records.about.is_empty() {
            return;
        }
        let culprit = failure.culprit();
        let numbers: Vec<ShuffleId> = self.shuffles.records.about.keys().copied().collect();
        for shuffle in numbers {
            let about = &self.shuffles.records.about[&shuffle];
            if about.failure.is_some() {
                continue;
            }
            let known = self.shuffles.registry.get(&about.name);
            let Some(known) = known.filter(|known| known.number == Some(shuffle)) else {
                continue;
            };
            let barrier = known.barrier.and_then(|task| self.scheduler.task(task));
            let has_failed = barrier.is_some_and(|barrier| barrier.state() == State::Failed);
            if !has_failed && !known.readers.contains_key(&culprit) {
                continue;
            }
            let why = self.why(failure);
            if let Some(about) = self.shuffles.records.about.get_mut(&shuffle) {
                about.failure = Some(why);
            }
        }
    }

    /// The names of the shuffles that run, and what is known of each.
    pub fn running_shuffles(&self) -> impl Iterator<Item = (&str, Record)> {
        let records = &self.shuffles.records;
        records.about.iter().filter_map(|(&shuffle, about)| {
            let record = records.recorder.record(self.now, shuffle)?;
            Some((&*about.name, record))
        })
    }

    /// The records of all shuffles that are known, the first one first.
    pub(crate) fn shuffle_records(&self) -> Answered {
        let records = &self.shuffles.records;
        let running = records.about.keys().filter_map(|&shuffle| {
            let record = records.recorder.record(self.now, shuffle)?;
            Some(self.told_of_shuffle(&record, None))
        });
        Ok(Some(Value::List(
            records.ended.iter().cloned().chain(running).collect(),
        )))
    }

    /// Keeps the records of shuffles that have ended, and tells the sidecar.
    pub(crate) fn look_after_records(&mut self) {
        for record in self.shuffles.records.recorder.take_ended(self.now) {
            let about = self.shuffles.records.about.get(&record.shuffle);
            let has_failed = about.is_some_and(|about| about.failure.is_some());
            let is_elsewhere = about.is_some_and(|about| about.service.is_some());
            // Of one that nobody began there is nothing else to say.
            if record.began.is_some() || has_failed || is_elsewhere {
                let outcome = self.outcome(&record);
                self.leave_for_who_watches(&record, outcome);
                let told = self.told_of_shuffle(&record, Some(outcome));
                if !is_elsewhere {
                    self.inform_sidecar("shuffle-ended", told.clone());
                }
                let ended = &mut self.shuffles.records.ended;
                if ended.len() >= MOST {
                    ended.pop_front();
                }
                ended.push_back(told);
            }
            self.shuffles.records.about.remove(&record.shuffle);
        }
    }

    fn leave_for_who_watches(&mut self, record: &Record, outcome: &'static str) {
        if !self.settings.sight {
            return;
        }
        let records = &mut self.shuffles.records;
        let name = records.about.get(&record.shuffle);
        if records.untold.len() >= MOST {
            records.untold.pop_front();
        }
        records.untold.push_back(EndedShuffle {
            name: name.map_or_else(String::new, |about| (*about.name).to_owned()),
            outcome,
            record: record.clone(),
        });
    }

    /// The first shuffle that has ended and was not [told](Self::ended_shuffle_told).
    pub fn ended_shuffle(&self) -> Option<&EndedShuffle> {
        self.shuffles.records.untold.front()
    }

    /// Whoever watches was told of the first one.
    pub fn ended_shuffle_told(&mut self) {
        self.shuffles.records.untold.pop_front();
    }

    /// How a shuffle ended. What a worker read that was lost is not known.
    fn outcome(&self, record: &Record) -> &'static str {
        let about = self.shuffles.records.about.get(&record.shuffle);
        let readers = about.map_or(1, |about| match about.is_again {
            true => 1,
            false => about.readers.max(1),
        });
        let mut troubles = record.troubles.iter();
        let is_known = !troubles.any(|(_, trouble)| matches!(trouble, Trouble::Lost(_)));
        let is_read = record.usage.reads >= readers || !is_known;
        if record.phase == Phase::Read && is_read {
            "finished"
        } else if about.is_some_and(|about| about.failure.is_some()) {
            "failed"
        } else {
            "cancelled"
        }
    }

    /// A record, for people. Without an outcome, it runs.
    fn told_of_shuffle(&self, record: &Record, outcome: Option<&'static str>) -> Value {
        let about = self.shuffles.records.about.get(&record.shuffle);
        let none = BTreeMap::new();
        let names = Names {
            name: about.map_or("", |about| &about.name),
            kind: about.map_or("", |about| &about.kind),
            client: about.and_then(|about| about.client.as_deref()),
            key: about.and_then(|about| about.key.as_deref()),
            a_server: "worker",
            servers: about.map_or(&none, |about| &about.servers),
            losses: about.map_or(&none, |about| &about.losses),
            failure: about.and_then(|about| about.failure.clone()),
        };
        let progress = self.shuffles.registry.master.progress(record.shuffle);
        let mut told = record.told(&names, progress, self.settings.started, outcome);
        let service = about.and_then(|about| about.service.clone());
        if let (Value::Dict(entries), Some(service)) = (&mut told, service) {
            entries.push((Value::str("service"), Value::Str(service)));
        }
        told
    }

    /// The name of a task among others of its collection: `name` of the key `(name, 3)`.
    pub(super) fn collection_of(&self, task: TaskId) -> Option<String> {
        match self.key(task) {
            Value::Str(name) => Some(name),
            Value::Tuple(parts) => match parts.into_iter().next() {
                Some(Value::Str(name)) => Some(name),
                _ => None,
            },
            _ => None,
        }
    }
}
