//! All spans as columns, for who asks in a language of its own.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::sight::{Sight, readable};

/// Spans by column, in the order in which they came, and what their numbers stand for. Times are nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tables {
    /// When each began, had read its inputs, had computed, and was over.
    pub times: [Vec<u64>; 4],
    /// The value that it is about.
    pub object: Vec<u64>,
    /// Bytes of it.
    pub bytes: Vec<u64>,
    /// The place of its group in `groups`; of a fetch, that of the worker that had the value, in `workers`.
    pub group: Vec<u16>,
    /// The place of its worker in `workers`.
    pub worker: Vec<u16>,
    /// Its thread, or a lane of [`lane`](crate::lane).
    pub lane: Vec<u16>,
    /// A [`Kind`](crate::Kind).
    pub kind: Vec<u8>,
    /// 1: it failed.
    pub failed: Vec<u8>,
    /// Names of groups.
    pub groups: Vec<String>,
    /// Ids and names of workers.
    pub workers: Vec<(u32, String)>,
    /// Keys that were kept, and the values of their tasks.
    pub keys: Vec<(u64, String)>,
}

impl Sight {
    /// All spans that are kept.
    pub fn tables(&self) -> Tables {
        let mut tables = Tables {
            groups: self
                .groups
                .iter()
                .map(|(_, group)| group.name.to_string())
                .collect(),
            workers: self
                .workers
                .iter()
                .map(|(row, worker)| (worker.id, self.workers.name(row)))
                .collect(),
            keys: self
                .keys
                .iter()
                .map(|(object, key)| (*object, readable(key)))
                .collect(),
            ..Tables::default()
        };
        for span in self.ring.within(0, u64::MAX) {
            let times = [span.start(), span.read(), span.computed(), span.end()];
            for (column, time) in tables.times.iter_mut().zip(times) {
                column.push(time);
            }
            tables.object.push(span.object().to_u64());
            tables.bytes.push(span.bytes());
            tables.group.push(span.group);
            tables.worker.push(span.worker);
            tables.lane.push(span.lane);
            tables.kind.push(span.kind() as u8);
            tables.failed.push(u8::from(span.is_failed()));
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::WorkerId;

    use super::*;
    use alloc::vec;

    use crate::{Batch, Beside, Event, Head, Kind, Record};

    #[test]
    fn columns_have_all_spans() {
        let record = Record {
            began: 5,
            read: 6,
            computed: 7,
            ended: 8,
            object: 3 << 32 | 1,
            bytes: 9,
            group: 4,
            lane: 2,
            kind: Kind::Task,
            failed: true,
        };
        let key = treadle_types::Value::Str("inc-1".into()).to_bytes();
        let beside = Beside {
            names: vec![(4, "inc")],
            keys: vec![(record.object, &key[..])],
            ..Beside::default()
        };
        let records = [record, record].into_iter();
        let bytes = Batch::encode(Head::default(), &beside, records);
        let mut sight = Sight::new(1 << 20);
        let worker = WorkerId(7);
        let event = Event::Batch {
            worker,
            bytes: &bytes,
        };
        sight.handle(&event, 100).unwrap();
        let tables = sight.tables();
        assert_eq!(tables.times, [5, 6, 7, 8].map(|time| [time; 2].to_vec()));
        assert_eq!(tables.object, [record.object; 2]);
        assert_eq!(tables.bytes, [9, 9]);
        assert_eq!((tables.lane, tables.kind), ([2, 2].into(), [0, 0].into()));
        assert_eq!(tables.failed, [1, 1]);
        let group = usize::from(tables.group[0]);
        assert_eq!(tables.groups[group], "inc");
        let worker = usize::from(tables.worker[1]);
        assert_eq!(tables.workers[worker], (7, "worker 7".into()));
        assert_eq!(tables.keys, [(record.object, "inc-1".into())]);
    }
}
