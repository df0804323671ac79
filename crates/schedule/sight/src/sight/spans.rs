//! What was done, and what runs: pictures of it, and one by one.

use alloc::vec::Vec;

use treadle_types::ObjectId;

use super::{Sight, readable};
use crate::casts;
use crate::overview::SpanRow;
use crate::picture::{self, Picture, Window};
use crate::span::{Kind, Span, lane};
use crate::workers::Running;

impl Sight {
    /// What a window shows. What runs is drawn until `now`, or the latest time of which anything is known.
    pub fn picture(&self, window: Window, now: u64) -> Picture {
        let now = self.now.max(now);
        let spans = (&self.ring, &self.sums);
        picture::draw(spans, &self.groups, &self.workers, window, now)
    }

    /// The span of a worker's lane at a time; or the nearest one, at most `within` nanoseconds away. What runs has
    /// no end.
    pub fn span(&self, at: u64, worker: u32, lane: u16, within: u64) -> Option<SpanRow> {
        let row = self.workers.find(worker)?;
        let (from, to) = (at.saturating_sub(within), at.saturating_add(within));
        let spans = self.ring.within(from, to);
        let spans = spans.filter(|span| span.worker == row && span.lane == lane);
        let distance = |span: &&Span| {
            let before = span.start().saturating_sub(at);
            before.max(at.saturating_sub(span.end()))
        };
        let span = spans.min_by_key(distance);
        let away = span.as_ref().map_or(u64::MAX, distance);
        let running = self.workers.get(row)?.running.iter();
        let running = running.filter(|one| one.lane == lane && one.began <= to);
        let running = running.min_by_key(|one| one.began.saturating_sub(at));
        match running.filter(|one| one.began.saturating_sub(at) < away) {
            Some(running) => Some(self.running_row(row, running)),
            None => span.map(|span| self.span_row(span)),
        }
    }

    /// What runs, as if it ended now.
    fn running_row(&self, row: u16, running: &Running) -> SpanRow {
        let is_cast = running.lane == lane::CAST;
        let kind = if is_cast { Kind::Cast } else { Kind::Task };
        let now = self.now.max(running.began);
        SpanRow {
            key: (!is_cast).then(|| running.key.clone()),
            object: running.object,
            group: match is_cast {
                true => running.key.clone(),
                false => running.group.clone(),
            },
            kind: kind.name(),
            worker: self.workers.name(row),
            worker_id: self.workers.get(row).map_or(0, |worker| worker.id),
            lane: running.lane,
            from: running.began,
            read: running.began,
            computed: now,
            to: now,
            bytes: 0,
            ok: true,
            running: true,
        }
    }

    /// The latest spans, at most so many, of the task that has this value: its number may have been another's
    /// before, so those of `runs` attempts, of which this is the last.
    pub fn spans_of(&self, object: ObjectId, runs: u32, most: usize) -> Vec<SpanRow> {
        let first = object.attempt.0.saturating_sub(runs.saturating_sub(1));
        let is_own = |span: &&Span| {
            let own = span.object();
            own.task == object.task
                && (first..=object.attempt.0).contains(&own.attempt.0)
                && matches!(span.kind(), Kind::Task | Kind::Fetch)
        };
        let spans = self.ring.within(0, u64::MAX).rev().filter(is_own);
        spans.take(most).map(|span| self.span_row(span)).collect()
    }

    fn span_row(&self, span: &Span) -> SpanRow {
        let object = span.object().to_u64();
        let group = match span.kind() {
            Kind::Fetch => alloc::format!("from {}", self.workers.name(span.group)),
            Kind::Cast => {
                let group = self.groups.name(span.group);
                alloc::format!("{group}: {}", casts::name(object))
            }
            _ => self.groups.name(span.group).into(),
        };
        SpanRow {
            key: match span.kind() {
                Kind::Task | Kind::Fetch => self.keys.get(object),
                _ => None,
            },
            object,
            group,
            kind: span.kind().name(),
            worker: self.workers.name(span.worker),
            worker_id: self.workers.get(span.worker).map_or(0, |worker| worker.id),
            lane: span.lane,
            from: span.start(),
            read: span.read(),
            computed: span.computed(),
            to: span.end(),
            bytes: span.bytes(),
            ok: !span.is_failed(),
            running: false,
        }
    }

    /// The value of the task of a key, by its text, if its key was kept.
    pub fn object_of(&self, key: &str) -> Option<ObjectId> {
        let mut keys = self.keys.keys.iter().rev();
        let found = keys.find(|(_, own)| readable(own) == key);
        found.map(|(object, _)| ObjectId::from_u64(*object))
    }
}
