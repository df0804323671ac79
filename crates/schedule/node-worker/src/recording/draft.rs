//! A batch that is about to be sent.

use bytes::Bytes;
use treadle_sight::{Batch, Beside, Frame, Head, Record, Running, Unnamed};

use super::lines::Lines;
use super::{Place, Runs};

/// What a batch will say.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) head: Head,
    pub(super) names: Vec<(u32, Box<str>)>,
    pub(super) keys: Vec<(u64, Bytes)>,
    pub(super) running: Option<Vec<Runs>>,
    pub(super) unnamed: Unnamed,
    pub(super) places: (u64, Vec<Place>),
    pub(super) lines: Lines,
    pub(super) records: Vec<Record>,
}

impl Draft {
    pub(super) fn encode(self) -> Vec<u8> {
        let names = self.names.iter().map(|(number, name)| (*number, &**name));
        let keys = self.keys.iter().map(|(object, key)| (*object, &**key));
        let running = self.running.as_ref().map(|running| {
            let running = running.iter().map(|task| Running {
                object: task.object.to_u64(),
                lane: task.lane.min(u16::MAX.into()) as u16,
                began: task.began,
                key: &task.key,
            });
            running.collect()
        });
        let frames = self.places.1.iter().map(|place| Frame {
            parent: place.parent,
            name: &place.name,
            time: place.time,
        });
        let beside = Beside {
            names: names.collect(),
            keys: keys.collect(),
            running,
            unnamed: self.unnamed,
            frames: frames.collect(),
            sampled: self.places.0,
            lines: self.lines.told().collect(),
            lost_lines: self.lines.lost,
        };
        Batch::encode(self.head, &beside, self.records.into_iter())
    }
}
