//! What must always hold.

use alloc::collections::BTreeMap;

use treadle_guards::{InvariantError, ensure, ensure_eq};

use super::Worker;
use crate::objects::{Activity, NOWHERE, State};

impl Worker {
    /// Verifies every invariant against a recount.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        self.objects.check()?;
        let Self { objects, .. } = self;
        self.ready.check(|key| Self::is_ready(objects, key))?;
        let (mut busy, mut pending, mut ready, mut stored, mut rejoining) = (0, 0, 0, 0, 0);
        let mut readers = BTreeMap::new();
        for (_, entry) in objects.iter() {
            if let State::Pending(task) = &entry.state {
                for &source in &task.sources {
                    *readers.entry(source).or_insert(0) += 1;
                }
            }
        }
        for (slot, entry) in objects.iter() {
            let object = entry.object;
            match &entry.state {
                State::Pending(task) => {
                    pending += 1;
                    ready += usize::from(task.missing == 0);
                    let sources = task.sources.iter().filter(|&&source| source != NOWHERE);
                    let mut missing = 0;
                    for &source in sources {
                        let source = objects.at(source);
                        let is_there = matches!(source.state, State::Stored);
                        missing += u32::from(!is_there);
                        ensure!(
                            is_there || source.waiters.contains(&slot),
                            "{object:?} is not told when {:?} is there",
                            source.object
                        );
                    }
                    ensure_eq!(task.missing, missing, "what {object:?} waits for");
                }
                State::Started {
                    activity,
                    cancelled,
                } => {
                    busy += u32::from(*activity == Activity::Running);
                    rejoining += usize::from(*activity == Activity::Rejoining);
                    ensure_eq!(
                        *activity == Activity::Rejoining,
                        self.rejoining.contains(&slot),
                        "{object:?} and the queue of those that want a slot again"
                    );
                    ensure!(
                        !(*cancelled && entry.is_wanted()),
                        "{object:?} is cancelled, and its value wanted"
                    );
                }
                State::Fetching(fetch) => {
                    ensure!(
                        fetch.from.is_some() || entry.is_wanted(),
                        "nobody wants {object:?}, and it is to be fetched"
                    );
                    ensure!(
                        fetch.from.is_some() || !fetch.untried.is_empty(),
                        "nobody can be asked for {object:?}"
                    );
                }
                State::Stored => {
                    stored += 1;
                    ensure!(!entry.is_wanted(), "{object:?} is here, and is waited for");
                    let readers = readers.get(&slot).copied().unwrap_or(0);
                    ensure_eq!(entry.readers, readers, "readers of {object:?}");
                }
                State::Vacant => unreachable!("only used entries are listed"),
            }
            for &waiter in &entry.waiters {
                let state = &objects.at(waiter).state;
                let waits = matches!(state, State::Pending(task) if task.sources.contains(&slot));
                ensure!(waits, "somebody waits for {object:?} who does not read it");
            }
        }
        ensure_eq!(self.busy, busy, "slots in use");
        ensure_eq!(self.pending, pending, "tasks that have not started");
        ensure_eq!(self.ready.len(), ready, "tasks that are ready");
        ensure_eq!(self.stored, stored, "values");
        ensure_eq!(
            self.rejoining.len(),
            rejoining,
            "tasks that want a slot again"
        );
        let fetches = objects
            .iter()
            .filter_map(|(slot, entry)| match &entry.state {
                State::Fetching(fetch) => Some((slot, &**fetch)),
                _ => None,
            });
        self.fetches.check(fetches)?;
        let threads = self.config.threads;
        ensure!(busy <= threads, "{busy} slots of {threads} are in use");
        let may_start = busy < threads && !self.held && !(self.paused && busy > 0);
        ensure!(
            !(may_start && ready > 0),
            "a slot is free, and a task is ready"
        );
        ensure!(
            busy == threads || rejoining == 0,
            "a slot is free, and a task wants it"
        );
        Ok(())
    }
}
