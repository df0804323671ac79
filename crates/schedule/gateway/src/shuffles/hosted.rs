//! Shuffles of another engine: its scheduler says when one begins and ends, and runs its tasks again.
//! So they have no barrier here, and what the master wants to run again is not passed on: whoever
//! cannot commit or read tells the other scheduler, which begins all of it anew, as another shuffle.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use treadle_shuffle::{MasterEvent, ServerId, ShuffleId, Spec, Tenant, ToMaster};
use treadle_types::{Runs, Value, WorkerId};

use crate::operations::{Answered, Arguments, OperationError, int};
use crate::shuffles::Shuffles;
use crate::shuffles::records::Described;
use crate::state::Core;

/// How many of them there may be at a time.
const MOST: usize = 4096;
/// How many maps, and partitions, one may have: messages about a shuffle take no more.
const MOST_PARTS: u32 = 1 << 20;

impl Core {
    /// Begins a shuffle: `name`, `maps`, `partitions`, `outputs` (ranges), `workers` (names of those
    /// that may hold partitions), `aligned` (the number of the other side of a merge), and for people `kind`
    /// and `key` (the name of the tasks that read it). The answer is
    /// its number, and where its outputs are: the name of a worker, and a range. `None`: none of the
    /// workers is here.
    pub(crate) fn host_shuffle(&mut self, arguments: &Arguments) -> Answered {
        let number = |name: &str| {
            arguments
                .integer(name)
                .and_then(|it| u32::try_from(it).ok())
        };
        let name = arguments.text("name").unwrap_or_default();
        let (Some(maps), Some(partitions)) = (number("maps"), number("partitions")) else {
            return Err(OperationError::Invalid(
                "maps and partitions have to be given",
            ));
        };
        if maps.max(partitions) > MOST_PARTS {
            return Err(OperationError::Invalid(
                "a shuffle has at most 2²⁰ maps and 2²⁰ partitions",
            ));
        }
        let ranges = arguments.list("outputs").unwrap_or_default();
        let outputs = ranges.iter().map(range).collect::<Option<Vec<_>>>();
        let Some(outputs) = outputs.and_then(Runs::from_ranges) else {
            return Err(OperationError::Invalid(
                "outputs has to be a list of ranges",
            ));
        };
        if self.shuffles.registry.master.shuffles().count() >= MOST {
            return Err(OperationError::Crowded);
        }
        let servers = self.servers_of(arguments);
        let Some(&first) = servers.first() else {
            return Ok(Some(Value::None));
        };
        let aligned = arguments.integer("aligned");
        let spec = Spec {
            tenant: Tenant::default(),
            maps,
            partitions,
            outputs: outputs.clone(),
            aligned: aligned.and_then(|it| u64::try_from(it).ok()).map(ShuffleId),
            copies: 1,
            is_handed_over: false,
            expected: 0,
            preferred: servers,
            committed: None,
        };
        let described = Described {
            name: &name.into(),
            kind: arguments.text("kind").unwrap_or_default(),
            client: None,
            key: arguments.text("key").map(ToOwned::to_owned),
            is_again: true,
            service: None,
        };
        let Shuffles {
            registry, records, ..
        } = &mut self.shuffles;
        let shuffle = registry.host(described, spec, self.now, records);
        let shuffle = shuffle.map_err(|error| OperationError::Refused(error.to_string()))?;
        // Somebody has to ask for a plan: its homes have to be known before the first transfer.
        self.tell_master(MasterEvent::Message {
            from: first,
            message: ToMaster::Join(shuffle),
        });
        Ok(Some(match self.homes(shuffle, &outputs) {
            Some(homes) => Value::Tuple([int(shuffle.0), Value::List(homes)].into()),
            None => {
                self.end_number(shuffle);
                Value::None
            }
        }))
    }

    /// Ends one: `number`.
    pub(crate) fn end_hosted_shuffle(&mut self, arguments: &Arguments) -> Answered {
        let number = arguments.integer("number");
        if let Some(number) = number.and_then(|number| u64::try_from(number).ok()) {
            self.end_number(ShuffleId(number));
        }
        Ok(Some(Value::None))
    }

    fn end_number(&mut self, shuffle: ShuffleId) {
        if self.shuffles.registry.end_hosted(shuffle) {
            self.tell_master(MasterEvent::End(shuffle));
        }
    }

    fn servers_of(&self, arguments: &Arguments) -> Vec<ServerId> {
        let workers = self.named_workers(arguments).into_iter();
        workers.map(ServerId::from).collect()
    }

    /// The names of the workers that hold ranges of partitions.
    fn homes(&self, shuffle: ShuffleId, outputs: &Runs) -> Option<Vec<Value>> {
        let mut homes: Vec<(WorkerId, u64, u64)> = Vec::new();
        for partition in outputs.iter() {
            let at = u32::try_from(partition).ok()?;
            let home = WorkerId(self.shuffles.registry.master.home(shuffle, at)?.node);
            match homes.last_mut() {
                Some((last, _, end)) if *last == home && *end == partition => *end += 1,
                _ => homes.push((home, partition, partition + 1)),
            }
        }
        let name = |worker| -> Option<String> { Some(self.workers.get(worker)?.name.clone()) };
        let homes = homes.into_iter().map(|(worker, first, end)| {
            let place = [Value::Str(name(worker)?), int(first), int(end)];
            Some(Value::Tuple(place.into()))
        });
        homes.collect()
    }
}

/// Ranges as a list of pairs of numbers.
pub(super) fn ranges(runs: &Runs) -> Value {
    let ranges = runs.ranges().iter();
    let pairs = ranges.map(|&(first, end)| Value::Tuple(vec![int(first), int(end)]));
    Value::List(pairs.collect())
}

/// A pair of numbers.
pub(super) fn range(value: &Value) -> Option<(u64, u64)> {
    let (Value::List(ends) | Value::Tuple(ends)) = value else {
        return None;
    };
    match ends.as_slice() {
        [Value::Int(first), Value::Int(end)] => {
            Some((u64::try_from(*first).ok()?, u64::try_from(*end).ok()?))
        }
        _ => None,
    }
}
