//! What verdicts are about.

use alloc::vec;
use alloc::vec::Vec;

use super::rows::status;
use super::{Sight, seconds};
use crate::series::SECONDS;
use crate::verdicts::{Facts, GroupFacts, ShuffleFacts, Verdict, WorkerFacts, judge};

/// The seconds that verdicts are about.
const MINUTE: usize = 60;

impl Sight {
    /// What rules say now; `with_shares`: also of what workers did of each group.
    pub(super) fn judged(&self, with_shares: bool) -> Vec<Verdict> {
        let mut facts = Facts {
            lost_spans: self.lost,
            dropped: self.dropped,
            unread: self.unread,
            history: self.history.clone(),
            ..Facts::default()
        };
        for step in self.times.recent().skip(SECONDS - MINUTE) {
            facts.tasks += step.tasks;
            facts.busy_seconds += seconds(step.busy);
            facts.fetch_seconds += seconds(step.fetching);
            facts.fetched = facts.fetched.saturating_add(step.fetched);
            facts.spilled = facts.spilled.saturating_add(step.spilled);
            facts.snapshots += step.snapshots;
            if step.tasks > 0 {
                // Where nothing runs, nobody waits for tasks either.
                facts.looks += step.snapshots;
                facts.starved += step.starved;
            }
            facts.narrow += step.narrow;
        }
        if let Some(tasks) = self.tasks {
            (facts.waiting, facts.assigned) = (tasks.waiting, tasks.assigned);
        }
        facts.groups = self
            .groups
            .iter()
            .filter(|(_, group)| group.runs > 0)
            .map(|(number, group)| GroupFacts {
                id: number.into(),
                name: group.name.clone(),
                runs: group.runs,
                failed: group.failed,
                seconds: seconds(group.time),
                mean: seconds(group.mean()),
                median: seconds(group.median()),
                max: seconds(group.longest),
                extent: seconds(group.to.saturating_sub(group.from)),
                longest: group.longest_object,
                long: group.long(),
            })
            .collect();
        facts.workers = self.worker_facts(with_shares);
        facts.threads = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.gone.is_none())
            .map(|(_, worker)| worker.threads)
            .sum();
        facts.shuffles = self
            .shuffles
            .iter()
            .map(|shuffle| ShuffleFacts {
                name: shuffle.name.clone(),
                bytes: shuffle.bytes,
                partitions: shuffle.partitions,
                largest: shuffle.largest,
            })
            .collect();
        let mut verdicts = judge(&facts);
        for place in verdicts.iter_mut().map(|verdict| &mut verdict.place) {
            place.key = place.longest.and_then(|object| self.keys.get(object));
        }
        verdicts
    }

    fn worker_facts(&self, with_shares: bool) -> Vec<WorkerFacts> {
        // What each worker did, and what the same tasks take elsewhere.
        let mut sums = vec![(0_u64, 0.0_f64, 0.0_f64); self.workers.iter().count()];
        let shares = with_shares.then(|| (self.groups.shortest(), self.groups.shares()));
        let (shortest, shares) = shares.map_or((Vec::new(), None), |(shortest, shares)| {
            (shortest, Some(shares))
        });
        for (group, row, share) in shares.into_iter().flatten() {
            let (Some(whole), Some(sum)) = (self.groups.get(group), sums.get_mut(usize::from(row)))
            else {
                continue;
            };
            let runs = whole.runs.saturating_sub(share.runs);
            if runs < 10 {
                continue;
            }
            let elsewhere = seconds(whole.time.saturating_sub(share.time)) / runs as f64;
            // Where its shortest is as short as those of others, its tasks were others, and not it slower.
            let (least, whose, second) = shortest[usize::from(group)];
            let others = if whose == row { second } else { least };
            let expected = match share.least < others.saturating_mul(3) / 2 {
                true => seconds(share.time),
                false => elsewhere * share.runs as f64,
            };
            // A few that took long, for what they imported, are not the worker either.
            let by_least = seconds(share.time) * (others as f64 / share.least.max(1) as f64);
            sum.2 += expected.max(by_least.min(seconds(share.time)));
            sum.0 += share.runs;
            sum.1 += seconds(share.time);
        }
        self.workers
            .iter()
            .map(|(row, worker)| {
                let (runs, took, expected) = sums[usize::from(row)];
                let state = worker.state.unwrap_or_default();
                let there = Some(worker).filter(|worker| worker.gone.is_none());
                WorkerFacts {
                    id: worker.id,
                    name: self.workers.name(row),
                    status: status(worker),
                    lost: worker.gone.clone().filter(|_| !worker.left),
                    managed: state.managed,
                    process: state.process,
                    memory: worker.memory,
                    runs,
                    seconds: took,
                    expected,
                    threads: worker.threads,
                    busy: there.and_then(|one| one.busy(self.now)).unwrap_or(0.0)
                        * f64::from(worker.threads),
                    processors: there
                        .and_then(|one| one.processors(self.now))
                        .unwrap_or(0.0),
                }
            })
            .collect()
    }
}
