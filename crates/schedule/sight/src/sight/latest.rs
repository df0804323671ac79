//! What runs, where threads were, and lines of logs.

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use super::{Sight, seconds};
use crate::overview::{Flame, LineRow, Lines, RunningRow, Series};
use crate::profile::Wanted;
use crate::series::{SECOND, Step};
use crate::span::lane;

/// Running tasks of an overview.
const MOST_RUNNING_SHOWN: usize = 100;
/// Lines of a log that are shown.
const MOST_LINES: usize = 1_000;
/// The place of busy threads in a series.
const BUSY: usize = 1;
/// Names of levels.
const LEVELS: [(u8, &str); 5] = [
    (50, "CRITICAL"),
    (40, "ERROR"),
    (30, "WARNING"),
    (20, "INFO"),
    (0, "DEBUG"),
];

impl Sight {
    /// Adds to the threads that were busy those of the tasks that still run.
    pub(super) fn add_running(&self, series: &mut Series, now: u64) {
        let Some(busy) = series.values.get_mut(BUSY) else {
            return;
        };
        let (to, length) = (series.to, busy.len() as u64);
        // A run that is shorter than the series begins in the middle of it.
        let place_of = |time: u64| {
            let before = to.saturating_sub(time).div_ceil(SECOND);
            length.saturating_sub(before) as usize
        };
        let begin_of = |place: usize| to.saturating_sub((length - place as u64) * SECOND);
        // What a second has more than the one before, but for the part of the first one.
        let mut more = vec![0.0; busy.len()];
        for (_, worker) in self.workers.iter() {
            let tasks = worker.running.iter().filter(|one| one.lane < lane::OTHERS);
            for task in tasks {
                let first = place_of(task.began);
                if let Some(place) = more.get_mut(first + 1) {
                    *place += 1.0;
                }
                if let Some(value) = busy.get_mut(first) {
                    let begin = begin_of(first);
                    let end = (begin + SECOND).min(now);
                    *value += seconds(end.saturating_sub(begin.max(task.began)));
                }
            }
        }
        for (_, worker) in self.workers.iter().filter(|(_, one)| one.unnamed.0 > 0) {
            let (count, began) = worker.unnamed;
            let count = count as f64;
            let first = place_of(began);
            if let Some(place) = more.get_mut(first + 1) {
                *place += count;
            }
            if let Some(value) = busy.get_mut(first) {
                let begin = begin_of(first);
                let end = (begin + SECOND).min(now);
                *value += count * seconds(end.saturating_sub(begin.max(began)));
            }
        }
        let mut running = 0.0;
        for (place, (value, more)) in busy.iter_mut().zip(more).enumerate() {
            running += more;
            let passed = now.saturating_sub(begin_of(place)).min(SECOND);
            *value += running * seconds(passed);
        }
    }

    /// Tasks that run, those that began first before the others, and how many more there are.
    pub(super) fn running(&self) -> (Vec<RunningRow>, usize) {
        let workers = self.workers.iter();
        let all = workers.flat_map(|(row, worker)| {
            let running = worker.running.iter();
            running.map(move |task| (row, worker.id, task))
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(row, _, task)| (task.began, *row, task.lane));
        let unnamed: u64 = self
            .workers
            .iter()
            .map(|(_, worker)| worker.unnamed.0)
            .sum();
        let more = all.len().saturating_sub(MOST_RUNNING_SHOWN) + unnamed as usize;
        let rows = all.into_iter().take(MOST_RUNNING_SHOWN);
        let rows = rows.map(|(row, id, task)| RunningRow {
            key: task.key.clone(),
            group: task.group.clone(),
            worker: self.workers.name(row),
            worker_id: id,
            lane: task.lane,
            from: task.began,
        });
        (rows.collect(), more)
    }

    /// Where the threads of tasks were, of a group or of all, between two times or always.
    ///
    /// `None`: there is no such worker.
    pub fn flame(
        &self,
        group: Option<&str>,
        window: Option<(u64, u64)>,
        worker: Option<u32>,
    ) -> Option<Flame> {
        let worker = worker.map(|id| self.workers.find(id));
        if worker == Some(None) {
            return None;
        }
        Some(self.profile.flame(Wanted {
            group,
            window,
            worker: worker.flatten(),
        }))
    }

    /// The latest lines of logs that have a text, whatever the case of its letters, are of a worker, at least of a
    /// level, and of a time.
    pub fn lines(
        &self,
        find: &str,
        worker: Option<u32>,
        least: u8,
        window: Option<(u64, u64)>,
    ) -> Lines {
        let (from, to) = window.unwrap_or((0, u64::MAX));
        let worker = worker.map(|id| self.workers.find(id));
        let find = find.to_lowercase();
        let mut lines = self.logs.iter().filter(|line| {
            line.level >= least
                && (from..=to).contains(&line.time)
                && worker.is_none_or(|row| row.is_some() && row == line.worker)
                && (find.is_empty() || line.text.to_lowercase().contains(&find))
        });
        let rows = lines.by_ref().take(MOST_LINES).map(|line| LineRow {
            time: line.time,
            level: LEVELS
                .iter()
                .find(|(least, _)| line.level >= *least)
                .map_or("", |(_, name)| name),
            worker: line
                .worker
                .map_or_else(|| "scheduler".into(), |row| self.workers.name(row)),
            worker_id: line
                .worker
                .and_then(|row| self.workers.get(row))
                .map(|worker| worker.id),
            text: (*line.text).to_string(),
        });
        let mut rows: Vec<LineRow> = rows.collect();
        // Workers tell of theirs one after the other.
        rows.sort_by_key(|row| u64::MAX - row.time);
        Lines {
            lines: rows,
            more: lines.next().is_some(),
            lost: self.logs.lost(),
        }
    }
}

pub(super) fn series<'a>(step: u64, to: u64, steps: impl Iterator<Item = &'a Step>) -> Series {
    let mut values = vec![Vec::new(); 6];
    for one in steps {
        let length = step as f64;
        let row = [
            one.tasks as f64 / length,
            seconds(one.busy) / length,
            one.fetched as f64 / length,
            one.spilled as f64 / length,
            one.managed as f64,
            one.process as f64,
        ];
        for (into, value) in values.iter_mut().zip(row) {
            into.push(value);
        }
    }
    Series {
        step: step as f64,
        to,
        names: ["tasks", "busy", "fetched", "spilled", "managed", "process"],
        values,
    }
}
