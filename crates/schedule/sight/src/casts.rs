//! Casts: one call, or the same values, for many workers. Each of them records its part; what they are together,
//! this says.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use treadle_types::ClientId;

use crate::overview::CastRow;
use crate::sight::Sight;
use crate::span::lane;

/// Casts that are kept: workers tell of the same one at different times.
const MOST: usize = 4_096;
/// Those that are shown.
const MOST_SHOWN: usize = 100;

/// The number by which records name a cast: it is no value.
pub fn cast_object(client: ClientId, number: u64) -> u64 {
    u64::from(client.0) << 32 | number & u64::from(u32::MAX)
}

/// What a number of a record stands for: the client, and the last 32 bits of its number.
fn named(object: u64) -> (u32, u32) {
    ((object >> 32) as u32, object as u32)
}

/// A cast, for people.
pub(crate) fn name(object: u64) -> String {
    let (client, number) = named(object);
    alloc::format!("cast {number} of client {client}")
}

#[derive(Clone, Copy, Default, Debug)]
struct Cast {
    /// What it is for.
    group: u16,
    bytes: u64,
    /// Workers that are done.
    receivers: u64,
    /// When the first of it came to a worker, the last worker had its turn, and was done.
    from: u64,
    given: u64,
    to: u64,
}

/// The latest of them.
#[derive(Debug, Default)]
pub(crate) struct Casts {
    casts: BTreeMap<u64, Cast>,
    /// In the order in which they were first heard of.
    order: VecDeque<u64>,
    /// How many there have been.
    count: u64,
}

impl Casts {
    /// A worker is done with its part.
    pub(crate) fn add(
        &mut self,
        object: u64,
        group: u16,
        bytes: u64,
        (start, given, end): (u64, u64, u64),
    ) {
        if !self.casts.contains_key(&object) {
            if self.order.len() == MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.casts.remove(&oldest);
            }
            self.order.push_back(object);
            self.count += 1;
        }
        let cast = self.casts.entry(object).or_insert(Cast {
            group,
            from: start,
            ..Cast::default()
        });
        cast.bytes = cast.bytes.max(bytes);
        cast.receivers += 1;
        cast.from = cast.from.min(start);
        cast.given = cast.given.max(given);
        cast.to = cast.to.max(end);
    }

    pub(crate) fn check(&self) {
        assert!(self.order.len() <= MOST);
        assert_eq!(self.order.len(), self.casts.len());
        assert!(self.order.iter().all(|one| self.casts.contains_key(one)));
    }
}

fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

impl Sight {
    /// The latest casts, those that some worker is not done with before the others, and how many more there were.
    pub(crate) fn cast_rows(&self, now: u64) -> (Vec<CastRow>, u64) {
        // Of those that take long: where they are not done, and since when.
        let mut open: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (_, worker) in self.workers.iter() {
            let casts = worker.running.iter().filter(|one| one.lane == lane::CAST);
            for one in casts {
                let (count, from) = open.entry(one.object).or_insert((0, one.began));
                *count += 1;
                *from = one.began.min(*from);
            }
        }
        let row = |object: u64, cast: Option<&Cast>, running: Option<(u64, u64)>| {
            let (client, number) = named(object);
            let (runs, since) = running.unwrap_or((0, u64::MAX));
            let from = cast.map_or(u64::MAX, |cast| cast.from).min(since);
            let to = cast.filter(|_| runs == 0).map_or(now, |cast| cast.to);
            let wire = cast.map_or(0.0, |cast| seconds(cast.from, cast.given));
            let all = cast.map_or(0, |cast| cast.bytes.saturating_mul(cast.receivers));
            CastRow {
                client,
                number,
                what: cast.map(|cast| self.groups.name(cast.group).into()),
                bytes: cast.map(|cast| cast.bytes),
                receivers: cast.map_or(0, |cast| cast.receivers),
                running: runs,
                from,
                seconds: seconds(from, to),
                given_seconds: cast.map(|_| wire),
                rate: (wire > 0.0).then_some(all as f64 / wire),
            }
        };
        let known = self.casts.order.iter().rev();
        let known = known.filter_map(|object| Some((*object, self.casts.casts.get(object)?)));
        let running = open.iter();
        let running =
            running.map(|(object, at)| row(*object, self.casts.casts.get(object), Some(*at)));
        let done = known.filter(|(object, _)| !open.contains_key(object));
        let done = done.map(|(object, cast)| row(object, Some(cast), None));
        let rows: Vec<CastRow> = running.chain(done).take(MOST_SHOWN).collect();
        let unheard = open
            .keys()
            .filter(|object| !self.casts.casts.contains_key(object));
        let all = self.casts.count + unheard.count() as u64;
        let more = all.saturating_sub(rows.len() as u64);
        (rows, more)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use treadle_types::WorkerId;

    use super::*;
    use crate::{Batch, Beside, Event, Head, Kind, Record, Running};

    /// What a worker says it has done, and does.
    fn tell(sight: &mut Sight, worker: u32, records: &[Record], running: &[u64], now: u64) {
        let key = treadle_types::Value::Str("cast".into()).to_bytes();
        let running = running.iter().map(|object| Running {
            object: *object,
            lane: lane::CAST,
            began: 5,
            key: &key,
        });
        let beside = Beside {
            names: vec![(1, "calls of views")],
            running: Some(running.collect()),
            ..Beside::default()
        };
        let bytes = Batch::encode(Head::default(), &beside, records.iter().copied());
        let event = Event::Batch {
            worker: WorkerId(worker),
            bytes: &bytes,
        };
        sight.handle(&event, now).unwrap();
        sight.check();
    }

    fn record(object: u64, began: u64) -> Record {
        Record {
            began,
            read: began + 1_000_000_000,
            computed: began + 3_000_000_000,
            ended: began + 3_000_000_000,
            object,
            bytes: 1 << 20,
            group: 1,
            lane: 0,
            kind: Kind::Cast,
            failed: false,
        }
    }

    #[test]
    fn what_workers_say_of_a_cast_is_one_row() {
        let mut sight = Sight::new(1 << 20);
        let object = cast_object(ClientId(7), 3);
        let second = 1_000_000_000;
        tell(&mut sight, 1, &[record(object, 0)], &[], 20 * second);
        tell(&mut sight, 2, &[record(object, second)], &[], 20 * second);
        let (rows, more) = sight.cast_rows(20 * second);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.client, row.number, more), (7, 3, 0));
        assert_eq!(row.what.as_deref(), Some("calls of views"));
        assert_eq!(
            (row.bytes, row.receivers, row.running),
            (Some(1 << 20), 2, 0)
        );
        assert_eq!((row.seconds, row.given_seconds), (4.0, Some(2.0)));
        assert_eq!(row.rate, Some((1 << 20) as f64));
        // It is no task, and no value has its number.
        let task = treadle_types::ObjectId::from_u64(object);
        assert_eq!(sight.spans_of(task, 1, 10), []);
    }

    #[test]
    fn a_cast_that_some_have_not_done_runs() {
        let mut sight = Sight::new(1 << 20);
        let (first, second) = (cast_object(ClientId(1), 1), cast_object(ClientId(1), 2));
        let now = 9_000_000_000;
        tell(&mut sight, 1, &[record(first, 10)], &[second], now);
        tell(&mut sight, 2, &[], &[first, second], now);
        let (rows, _) = sight.cast_rows(now);
        let told: Vec<_> = rows
            .iter()
            .map(|row| (row.number, row.receivers, row.running))
            .collect();
        assert_eq!(told, [(1, 1, 1), (2, 0, 2)]);
        assert_eq!((rows[1].what.clone(), rows[1].bytes), (None, None));
        assert_eq!(rows[1].seconds, (now - 5) as f64 / 1e9);
    }

    #[test]
    fn the_oldest_make_room_and_are_counted() {
        let mut casts = Casts::default();
        for number in 0..MOST as u64 + 5 {
            casts.add(number, 0, 1, (0, 1, 2));
        }
        casts.check();
        assert_eq!((casts.count, casts.order[0]), (MOST as u64 + 5, 5));
    }
}
