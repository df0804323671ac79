//! What shuffles of the service leave behind: the records of those that run, and of the latest that ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};
use treadle_reactor::awake;
use treadle_shuffle::{MasterEffect, MasterEvent, Progress, ServerId, ShuffleId, Spec, ToNode};
use treadle_shuffle_history::{Names, Phase, Record, Recorder};
use treadle_types::{Value, WorkerId};

/// Shuffles that have ended and are remembered.
const MOST: usize = 256;
/// Those of them that nobody has taken for a journal.
const MOST_FRESH: usize = 4096;

#[derive(Debug)]
pub(crate) struct Records {
    recorder: Recorder,
    /// When the clock of the machines began, since 1970.
    started: Duration,
    about: BTreeMap<ShuffleId, About>,
    ended: VecDeque<Json>,
    fresh: VecDeque<Json>,
    /// Those of them that the registry was not told. `None`: there is no other.
    untold: Option<VecDeque<Json>>,
    /// It is being told some.
    is_telling: bool,
}

/// What the master knows of a shuffle, beside its record.
#[derive(Debug)]
struct About {
    name: String,
    client: String,
    application: u64,
    /// Which stages of its application write it; empty: nobody has said so.
    stages: String,
    /// The servers that held it.
    servers: BTreeMap<WorkerId, String>,
    /// Why it was ended, if not by its program.
    failure: Option<String>,
}

impl Records {
    /// `is_told`: a registry is to have them, too.
    pub(crate) fn new(is_told: bool) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            recorder: Recorder::default(),
            started: since_1970.unwrap_or_default().saturating_sub(awake::now()),
            about: BTreeMap::new(),
            ended: VecDeque::new(),
            fresh: VecDeque::new(),
            untold: is_told.then(VecDeque::new),
            is_telling: false,
        }
    }

    /// A shuffle was registered.
    pub(crate) fn begun(&mut self, shuffle: ShuffleId, spec: &Spec, name: &str, client: &str) {
        self.recorder.registered(awake::now(), shuffle, spec);
        let about = About {
            name: name.into(),
            client: client.into(),
            application: spec.tenant.application.0,
            stages: String::new(),
            servers: BTreeMap::new(),
            failure: None,
        };
        self.about.insert(shuffle, about);
    }

    /// Which stages of its application write a shuffle. `false`: it has ended.
    pub(crate) fn written_by(&mut self, shuffle: ShuffleId, stages: &str) -> bool {
        let about = self.about.get_mut(&shuffle);
        about.map(|about| about.stages = stages.into()).is_some()
    }

    /// A shuffle is to be ended for another reason than that its program says so.
    pub(crate) fn failed(&mut self, shuffle: ShuffleId, reason: &str) {
        if let Some(about) = self.about.get_mut(&shuffle) {
            about.failure = Some(reason.into());
        }
    }

    /// Something is about to happen to the master.
    pub(crate) fn saw(&mut self, event: &MasterEvent) {
        // Whether a shuffle can be is not known before.
        if !matches!(event, MasterEvent::Register { .. }) {
            self.recorder.saw(awake::now(), event);
        }
    }

    /// The master wants something done. `name` says how a server is called.
    pub(crate) fn follows(&mut self, effect: &MasterEffect, name: impl Fn(ServerId) -> String) {
        self.recorder.follows(awake::now(), effect);
        if let MasterEffect::Send {
            message: ToNode::Plan(plan),
            ..
        } = effect
            && let Some(about) = self.about.get_mut(&plan.shuffle)
        {
            for server in plan.groups.iter().flat_map(|group| group.holders()) {
                let called = about.servers.entry(WorkerId(server.node));
                called.or_insert_with(|| name(server));
            }
        }
    }

    /// Keeps the records of shuffles that have ended since.
    pub(crate) fn look_after(&mut self) {
        for record in self.recorder.take_ended(awake::now()) {
            // Of one that nobody wrote to there is nothing to say.
            if record.began.is_some() {
                let told = self.told(&record, None, true);
                self.keep(told);
            }
            self.about.remove(&record.shuffle);
        }
    }

    fn keep(&mut self, told: Json) {
        let lists = [(&mut self.ended, MOST), (&mut self.fresh, MOST_FRESH)];
        let untold = self.untold.as_mut().map(|untold| (untold, MOST));
        for (records, most) in lists.into_iter().chain(untold) {
            if records.len() >= most {
                records.pop_front();
            }
            records.push_back(told.clone());
        }
    }

    /// Keeps what the master of an application has recorded.
    ///
    /// # Errors
    /// It is no list of records.
    pub(crate) fn adopt(&mut self, told: &str) -> Result<(), String> {
        let told = serde_json::from_str::<Vec<Json>>(told).map_err(|error| error.to_string())?;
        if !told.iter().all(Json::is_object) {
            return Err("these are no records".into());
        }
        told.into_iter().for_each(|told| self.keep(told));
        Ok(())
    }

    /// Those that the registry is to be told, as JSON; `None`: there are none.
    pub(crate) fn take_untold(&mut self) -> Option<String> {
        let untold = self.untold.as_mut().filter(|untold| !untold.is_empty())?;
        let untold: Json = std::mem::take(untold).into_iter().collect();
        self.is_telling = true;
        Some(untold.to_string())
    }

    /// The registry has answered.
    pub(crate) fn told_registry(&mut self) {
        self.is_telling = false;
    }

    /// Whether nothing is to be recorded any more, or told.
    pub(crate) fn is_told(&self) -> bool {
        !self.is_telling
            && self.about.is_empty()
            && self.untold.as_ref().is_none_or(VecDeque::is_empty)
    }

    /// All that are known, the first one first. `progress` says how far one is.
    pub(crate) fn all(&self, progress: impl Fn(ShuffleId) -> Option<Progress>) -> Json {
        let running = self.about.keys().filter_map(|&shuffle| {
            let record = self.recorder.record(awake::now(), shuffle)?;
            // One that has ended is not over before processes have said what they did.
            let is_told = record.ended.is_none() || record.began.is_some();
            is_told.then(|| self.told(&record, progress(shuffle), false))
        });
        self.ended.iter().cloned().chain(running).collect()
    }

    /// That of a shuffle that runs, and has `progress`; `None`: it has ended.
    pub(crate) fn running(&self, shuffle: ShuffleId, progress: Progress) -> Option<Json> {
        let record = self.recorder.record(awake::now(), shuffle)?;
        Some(self.told(&record, Some(progress), false))
    }

    /// Those of shuffles that have ended, the latest first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &Json> {
        self.ended.iter().rev()
    }

    /// Those that have ended since this was last called.
    pub(crate) fn take_fresh(&mut self) -> Json {
        std::mem::take(&mut self.fresh).into_iter().collect()
    }

    fn told(&self, record: &Record, progress: Option<Progress>, is_over: bool) -> Json {
        let about = self.about.get(&record.shuffle);
        let none = BTreeMap::new();
        let failure = about.and_then(|about| about.failure.clone());
        let outcome = is_over.then(|| match record.phase {
            _ if failure.is_some() => "failed",
            Phase::Read => "finished",
            _ => "cancelled",
        });
        let names = Names {
            name: about.map_or("", |about| &about.name),
            kind: "service",
            client: about.map(|about| &*about.client),
            key: None,
            a_server: "server",
            servers: about.map_or(&none, |about| &about.servers),
            losses: &none,
            failure: failure.map(Value::Str),
        };
        let mut told = json_of(record.told(&names, progress, self.started, outcome));
        if let (Json::Object(entries), Some(about)) = (&mut told, about) {
            // As in the state: a cluster finds its own.
            let application = format!("{:016x}", about.application);
            entries.insert("application".into(), json!(application));
            if !about.stages.is_empty() {
                entries.insert("stages".into(), json!(about.stages));
            }
        }
        told
    }
}

/// A value of a record as JSON. It has no bytes and no pickles.
fn json_of(value: Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Str(value) => json!(value),
        Value::Tuple(values) | Value::List(values) => values.into_iter().map(json_of).collect(),
        Value::Dict(entries) => {
            let entries = entries.into_iter();
            let entries = entries.filter_map(|(name, value)| match name {
                Value::Str(name) => Some((name, json_of(value))),
                _ => None,
            });
            Json::Object(entries.collect())
        }
        Value::None | Value::Bytes(_) | Value::Pickle(_) => Json::Null,
    }
}
