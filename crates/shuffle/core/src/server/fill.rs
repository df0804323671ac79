//! Filling another copy: a copy that is alone sends its batches to the server that the plan names.
//!
//! ```text
//!   pushing ──all acknowledged──▶ adopting ──the master makes it a copy──▶ over
//!      ▲                             │
//!      └── not reached, or the group was sealed meanwhile
//! ```

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::{Guard, RESENDS, pause};
use crate::server::group::GroupState;
use crate::server::{ConnectionId, Effects, Server, ServerEffect};
use crate::{
    BatchId, Expected, FromServer, GroupId, Plan, Push, Refusal, ServerId, ShuffleId, ToMaster,
    ToServer, Verdict,
};

/// What it takes to put the batches of a run together again, compared with the run: themselves, and the largest
/// partition in it.
const RESTORED: u64 = 2;

/// A copy that is being filled from one of this server.
#[derive(Debug)]
pub(super) struct Fill {
    to: GroupId,
    queue: VecDeque<BatchId>,
    sent: BTreeMap<BatchId, u64>,
    bytes: u64,
    /// It has everything, and was told so.
    is_told: bool,
    /// How often batches came there damaged.
    malformed: BTreeMap<BatchId, u32>,
    tries: u32,
    retry_at: Duration,
}

impl Server {
    /// A plan says which copies are to be filled.
    pub(super) fn plan_fills(&mut self, shuffle: ShuffleId, plan: &Plan) {
        let Some(me) = self.shuffles.get(&shuffle).map(|held| held.me) else {
            return;
        };
        let mut wanted = BTreeMap::new();
        for group in plan
            .groups
            .iter()
            .filter(|group| group.copies.first() == Some(&me) && group.uploaded.is_none())
        {
            if let Some(server) = group.filling {
                wanted.insert(group.id.at(me), group.id.at(server));
            }
        }
        self.fills
            .retain(|&(other, copy), fill| other != shuffle || wanted.get(&copy) == Some(&fill.to));
        let held = self.shuffles.get(&shuffle);
        for (copy, to) in wanted {
            let state = held.and_then(|held| held.groups.get(&copy));
            let Some(state) = state.filter(|_| !self.fills.contains_key(&(shuffle, copy))) else {
                continue;
            };
            let attempts = state
                .attempts
                .iter()
                .filter(|(_, attempt)| !attempt.is_lost);
            let batches = attempts.flat_map(|(&(map, id), attempt)| {
                let batches = attempt.batches.iter();
                batches.map(move |(&number, batch)| {
                    let id = BatchId {
                        map,
                        attempt: id,
                        number,
                    };
                    (batch.place.run(), id)
                })
            });
            // Those of one run side by side: a run is read as a whole.
            let mut batches: Vec<_> = batches.collect();
            batches.sort_unstable();
            let fill = Fill {
                to,
                queue: batches.into_iter().map(|(_, id)| id).collect(),
                sent: BTreeMap::new(),
                bytes: 0,
                is_told: false,
                malformed: BTreeMap::new(),
                tries: 0,
                retry_at: Duration::ZERO,
            };
            self.fills.insert((shuffle, copy), fill);
        }
    }

    /// Sends what the windows allow.
    pub(super) fn pump_fills(&mut self, effects: &mut Effects) {
        let (now, window) = (self.now, self.config.server_window);
        let restoring = RESTORED * self.config.run;
        let memory = &mut self.memory;
        memory.fills_want = 0;
        if self.fills.values().all(Fill::is_empty) {
            memory.restoring = 0;
        } else if memory.restoring == 0 {
            if !memory.ledger.has_room(restoring) {
                memory.fills_want = restoring;
                return;
            }
            memory.restoring = restoring;
            memory.ledger.grant(restoring);
        }
        for (&(shuffle, copy), fill) in &mut self.fills {
            let held = self.shuffles.get(&shuffle);
            let Some(state) = held.and_then(|held| held.groups.get(&copy)) else {
                continue;
            };
            if fill.is_told || fill.retry_at > now {
                continue;
            }
            let to = fill.to.server;
            while fill.bytes < window
                && let Some(id) = fill.queue.pop_front()
            {
                let attempt = state.attempts.get(&(id.map, id.attempt));
                let batch = state
                    .batch(id)
                    .filter(|_| attempt.is_some_and(|a| !a.is_lost));
                let Some(batch) = batch else {
                    continue;
                };
                if !memory.ledger.has_room(batch.length) {
                    memory.fills_want = batch.length;
                    fill.queue.push_front(id);
                    break;
                }
                memory.ledger.grant(batch.length);
                fill.sent.insert(id, batch.length);
                fill.bytes += batch.length;
                let push = Push {
                    shuffle,
                    group: fill.to,
                    batch: id,
                    tally: batch.tally,
                    length: batch.length,
                };
                let message = ToServer::Push(push);
                effects.push(ServerEffect::Tell { to, message });
            }
            if fill.is_empty() {
                fill.is_told = true;
                let message = ToServer::Adopt {
                    shuffle,
                    group: fill.to,
                    source: copy,
                    expected: state.sealed.clone(),
                };
                effects.push(ServerEffect::Tell { to, message });
            }
        }
    }

    /// When something is to be tried again.
    pub(super) fn fills_due(&self) -> Option<Duration> {
        let waiting = self.fills.values().filter(|fill| !fill.is_told);
        let waiting = waiting.filter(|fill| fill.retry_at > self.now);
        waiting.map(|fill| fill.retry_at).min()
    }

    /// A server that is being filled answers.
    pub(super) fn peer(&mut self, message: FromServer, effects: &mut Effects) {
        let (shuffle, group, batch, refused) = match message {
            FromServer::Acked {
                shuffle,
                group,
                batch,
            } => (shuffle, group, batch, None),
            FromServer::Refused {
                shuffle,
                group,
                batch,
                reason,
            } => (shuffle, group, batch, Some(reason)),
            _ => return,
        };
        let Some(held) = self.shuffles.get(&shuffle) else {
            return;
        };
        let source = group.at(held.me);
        let (now, config) = (self.now, &self.config);
        let fill = self.fills.get_mut(&(shuffle, source));
        let Some(fill) = fill.filter(|fill| fill.to == group) else {
            return;
        };
        let length = fill.sent.remove(&batch);
        fill.bytes -= length.unwrap_or(0);
        match refused {
            None => fill.tries = 0,
            Some(Refusal::Damaged | Refusal::NoRoom(_)) => {
                self.report(shuffle, ToMaster::Damaged { shuffle, group }, effects);
            }
            Some(Refusal::Malformed) if fill.malformed.get(&batch) >= Some(&RESENDS) => {
                // It was damaged here, and every other server would refuse it, too.
                let group = source;
                self.report(shuffle, ToMaster::Damaged { shuffle, group }, effects);
            }
            Some(reason) => {
                if reason == Refusal::Malformed {
                    // Or it was dropped here, while it was announced.
                    *fill.malformed.entry(batch).or_default() += 1;
                }
                if length.is_some() {
                    fill.queue.push_back(batch);
                }
                fill.is_told = false;
                fill.wait(now + pause(config, fill.tries));
            }
        }
    }

    /// A server that is being filled cannot be reached: everything that was not answered is sent again.
    pub(super) fn unreached(&mut self, server: ServerId) {
        let (now, config) = (self.now, &self.config);
        for fill in self
            .fills
            .values_mut()
            .filter(|fill| fill.to.server == server)
        {
            let sent = core::mem::take(&mut fill.sent);
            fill.queue.extend(sent.into_keys());
            fill.bytes = 0;
            fill.is_told = false;
            fill.wait(now + pause(config, fill.tries));
        }
    }

    /// A group of this server is complete: the copy that is filled is told so.
    pub(super) fn sealed_fill(&mut self, shuffle: ShuffleId, group: GroupId) {
        if let Some(fill) = self.fills.get_mut(&(shuffle, group)) {
            fill.is_told = false;
        }
    }

    /// This copy has everything that the one before it has.
    pub(super) fn adopt(
        &mut self,
        from: ConnectionId,
        shuffle: ShuffleId,
        (group, source): (GroupId, GroupId),
        expected: Option<Expected>,
        effects: &mut Effects,
    ) {
        if let Err(reason) = self.resolve(shuffle, group) {
            let batch = BatchId::default();
            let message = FromServer::Refused {
                shuffle,
                group,
                batch,
                reason,
            };
            return effects.push(ServerEffect::Reply { to: from, message });
        }
        let is_sealed = expected.is_some();
        let held = self.shuffles.get(&shuffle);
        let state = held.and_then(|held| held.groups.get(&group));
        if state.is_some_and(GroupState::is_adopting) {
            return;
        }
        let verdict = state
            .zip(expected.as_ref())
            .map(|(state, expected)| state.compare(expected, Guard::Receipts.holds()));
        let report = match verdict {
            None | Some(Verdict::Complete) => ToMaster::Filled {
                shuffle,
                group,
                source,
                is_sealed,
            },
            Some(_) => ToMaster::Damaged { shuffle, group },
        };
        if let Some(expected) = expected.filter(|_| verdict == Some(Verdict::Complete)) {
            self.complete(shuffle, group, expected, effects);
        }
        self.report(shuffle, report, effects);
    }
}

impl Fill {
    fn wait(&mut self, until: Duration) {
        self.retry_at = until;
        self.tries += 1;
    }

    /// Whether it has been given everything.
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.sent.is_empty()
    }

    /// Bytes that are under way to it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is counted beside what there is.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.bytes, self.sent.values().sum())
    }
}

/// The copies that are filled, by the copy that they are filled from.
pub(super) type Fills = BTreeMap<(ShuffleId, GroupId), Fill>;
