//! Records as people and other programs get them (`treadle.shuffle.ShuffleRecord`).

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_shuffle::{Progress, ServerId, Usage};
use treadle_types::{Value, WorkerId};

use crate::{Phase, Record, Sizes, Trouble};

/// What the host engine knows of a shuffle, beside its record.
#[derive(Clone, Debug)]
pub struct Names<'a> {
    /// For people.
    pub name: &'a str,
    /// What kind of shuffle it is.
    pub kind: &'a str,
    /// Who submitted it.
    pub client: Option<&'a str>,
    /// The name of the tasks that read it.
    pub key: Option<&'a str>,
    /// What a server is: a `worker` or a `server`.
    pub a_server: &'static str,
    /// How its servers are called, also those that are gone.
    pub servers: &'a BTreeMap<WorkerId, String>,
    /// Why some of them were lost.
    pub losses: &'a BTreeMap<WorkerId, String>,
    /// Why it failed.
    pub failure: Option<Value>,
}

impl Record {
    /// The record as a dictionary. Times are counted from `started`, a time since the beginning of 1970.
    /// Without a progress, it has ended; without an outcome, it runs.
    pub fn told(
        &self,
        names: &Names<'_>,
        progress: Option<Progress>,
        started: Duration,
        outcome: Option<&'static str>,
    ) -> Value {
        let optional =
            |text: Option<&str>| text.map_or(Value::None, |text| Value::Str(text.into()));
        let progress = progress.unwrap_or_default();
        let tally = self.committed.unwrap_or(self.moved);
        let expected = self
            .committed
            .map_or_else(|| progress.expected_bytes(), |tally| tally.bytes);
        let at = |time: Duration| Value::Float((started + time).as_secs_f64());
        let [waiting, transfer, barrier, read] = self.spent;
        let seconds = [
            ("waiting", waiting),
            ("transfer", transfer),
            ("barrier", barrier),
            ("read", read),
        ];
        let seconds = seconds.map(|(name, time)| (name, Value::Float(time.as_secs_f64())));
        let servers = names.servers.values().cloned().map(Value::Str);
        let troubles = self.troubles.iter().map(|&(time, trouble)| {
            let what = Value::Str(names.text_of(trouble));
            dict([("time", at(time)), ("what", what)])
        });
        let phase = match self.phase {
            Phase::Waiting => "waiting",
            Phase::Transfer => "transfer",
            Phase::Barrier => "barrier",
            Phase::Read => "read",
        };
        let sizes = self.sizes.as_ref().map_or(Value::None, told_of_sizes);
        dict([
            ("number", int(self.shuffle.0)),
            ("name", Value::Str(names.name.into())),
            ("kind", Value::Str(names.kind.into())),
            ("key", optional(names.key)),
            ("client", optional(names.client)),
            ("state", Value::str(outcome.unwrap_or("running"))),
            ("phase", Value::str(phase)),
            ("began", at(self.began.unwrap_or(self.registered))),
            ("ended", self.ended.map_or(Value::None, at)),
            ("seconds", dict(seconds)),
            ("inputs", int(self.maps)),
            ("transferred", int(progress.transferred)),
            ("partitions", int(self.partitions)),
            ("outputs", int(self.outputs)),
            ("rows", int(tally.rows)),
            ("bytes", int(tally.bytes)),
            ("expected_bytes", int(expected)),
            ("moved_rows", int(self.moved.rows)),
            ("moved_bytes", int(self.moved.bytes)),
            ("transfers", int(self.transfers)),
            ("repeated", int(self.repeated)),
            ("generation", int(self.generation.0)),
            ("copies", int(self.copies)),
            ("servers", Value::List(servers.collect())),
            ("sizes", sizes),
            ("work", told_of_usage(&self.usage)),
            ("troubles", Value::List(troubles.collect())),
            ("more_troubles", int(self.more_troubles)),
            ("failure", names.failure.clone().unwrap_or(Value::None)),
        ])
    }
}

impl Names<'_> {
    fn text_of(&self, trouble: Trouble) -> String {
        let noun = self.a_server;
        let called = |server: ServerId| {
            let name = self.servers.get(&WorkerId(server.node));
            name.map_or_else(|| format!("number {}", server.node), String::clone)
        };
        match trouble {
            Trouble::Lost(server) => {
                let cause = self.losses.get(&WorkerId(server.node));
                let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
                format!("{noun} {} was lost{cause}", called(server))
            }
            Trouble::Damaged(server) => format!(
                "rows at {noun} {} could not be read, or were not those that were sent",
                called(server)
            ),
            Trouble::Poisoned(server) => {
                format!(
                    "{noun} {} could not take rows, or write them to its files",
                    called(server)
                )
            }
            Trouble::Slow(server) => format!(
                "{noun} {} took rows much more slowly than the others",
                called(server)
            ),
            Trouble::Differs(Some(map)) => format!("input {map} had other rows when it ran again"),
            Trouble::Differs(None) => "an input had other rows when it ran again".to_owned(),
        }
    }
}

fn dict<const N: usize>(entries: [(&'static str, Value); N]) -> Value {
    let entries = entries.into_iter();
    Value::Dict(
        entries
            .map(|(name, value)| (Value::str(name), value))
            .collect(),
    )
}

fn int(value: impl TryInto<i64>) -> Value {
    Value::Int(value.try_into().unwrap_or(i64::MAX))
}

fn told_of_sizes(sizes: &Sizes) -> Value {
    let pairs = |pairs: Vec<(u64, u64)>| {
        let pairs = pairs.into_iter();
        let pairs = pairs.map(|(first, second)| Value::Tuple(vec![int(first), int(second)]));
        Value::List(pairs.collect())
    };
    let largest = sizes.largest.iter();
    let largest = largest.map(|&(partition, bytes)| (u64::from(partition), bytes));
    dict([
        ("count", int(sizes.count)),
        ("bytes", int(sizes.bytes)),
        ("empty", int(sizes.empty)),
        ("quantiles", pairs(sizes.quantiles.clone())),
        ("largest", pairs(largest.collect())),
        (
            "bars",
            Value::List(sizes.bars.iter().map(|&bytes| int(bytes)).collect()),
        ),
        ("bar", int(sizes.bar)),
    ])
}

fn told_of_usage(usage: &Usage) -> Value {
    let seconds = |micros: u64| Value::Float(Duration::from_micros(micros).as_secs_f64());
    dict([
        ("reads", int(usage.reads)),
        ("read_bytes", int(usage.read_bytes)),
        ("pushed_bytes", int(usage.pushed)),
        ("stored_bytes", int(usage.stored)),
        ("spilled_bytes", int(usage.spilled)),
        ("loaded_bytes", int(usage.loaded)),
        ("again", int(usage.again)),
        ("failed", int(usage.failed)),
        ("gather_seconds", seconds(usage.gathering)),
        ("push_seconds", seconds(usage.pushing)),
        ("compare_seconds", seconds(usage.comparing)),
        ("read_seconds", seconds(usage.reading)),
    ])
}
