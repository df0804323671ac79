//! Makes records of what happens to shuffles.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use treadle_shuffle::{
    Generation, MasterEffect, MasterEvent, ServerId, ShuffleId, Spec, Tally, ToMaster, ToNode,
    Usage,
};
use treadle_types::Runs;

use crate::{Phase, Record, Sizes, Trouble};

/// For how long a record waits for what processes did.
const PATIENCE: Duration = Duration::from_secs(5);

/// Troubles that a record names. More are counted.
const MOST_TROUBLES: usize = 32;

/// What servers counted: by epoch and first partition of a group, its partitions with their bytes. Copies
/// of a group count the same.
type Measured = BTreeMap<(Generation, u64), (Runs, Vec<u64>)>;

#[derive(Debug)]
struct Open {
    record: Record,
    /// When the phase began.
    since: Duration,
    /// Maps that were transferred, once at least.
    transferred: Runs,
    /// What the barrier asked to commit.
    asked: Tally,
    measured: Measured,
    /// Processes that are to say what they did.
    awaited: BTreeSet<ServerId>,
}

impl Open {
    fn enter(&mut self, now: Duration, phase: Phase) {
        let record = &mut self.record;
        if record.ended.is_none() {
            record.spent[record.phase as usize] += now.saturating_sub(self.since);
            record.phase = phase;
        }
        self.since = now;
    }

    fn trouble(&mut self, now: Duration, trouble: Trouble) {
        match self.record.troubles.len() < MOST_TROUBLES {
            true => self.record.troubles.push((now, trouble)),
            false => self.record.more_troubles += 1,
        }
    }

    fn is_ended(&self) -> bool {
        self.record.ended.is_some()
    }
}

/// The records of the shuffles that run, and of those that have just ended.
#[derive(Debug, Default)]
pub struct Recorder {
    shuffles: BTreeMap<ShuffleId, Open>,
    /// How many of them have ended.
    ended: usize,
}

impl Recorder {
    /// A shuffle was registered.
    pub fn registered(&mut self, now: Duration, shuffle: ShuffleId, spec: &Spec) {
        let record = Record {
            shuffle,
            maps: spec.maps,
            partitions: spec.partitions,
            outputs: spec.outputs.len(),
            copies: spec.copies,
            registered: now,
            began: None,
            ended: None,
            phase: Phase::Waiting,
            spent: [Duration::ZERO; 4],
            committed: None,
            moved: Tally::default(),
            transfers: 0,
            repeated: 0,
            generation: Generation(1),
            servers: BTreeSet::new(),
            sizes: None,
            usage: Usage::default(),
            troubles: Vec::new(),
            more_troubles: 0,
        };
        let open = Open {
            record,
            since: now,
            transferred: Runs::new(),
            asked: Tally::default(),
            measured: Measured::new(),
            awaited: BTreeSet::new(),
        };
        self.shuffles.insert(shuffle, open);
    }

    /// Something is about to happen to the master.
    pub fn saw(&mut self, now: Duration, event: &MasterEvent) {
        match event {
            MasterEvent::Register { shuffle, spec } => self.registered(now, *shuffle, spec),
            MasterEvent::Lost(server) => self.lost(now, *server),
            MasterEvent::End(shuffle) => {
                if let Some(open) = self.shuffles.get_mut(shuffle)
                    && !open.is_ended()
                {
                    open.enter(now, open.record.phase);
                    open.record.ended = Some(now);
                    self.ended += 1;
                }
            }
            MasterEvent::Message { from, message } => self.heard(now, *from, message),
            MasterEvent::Joined(_)
            | MasterEvent::Standing { .. }
            | MasterEvent::Draining(_)
            | MasterEvent::Avoid { .. } => {}
        }
    }

    fn lost(&mut self, now: Duration, server: ServerId) {
        for open in self.shuffles.values_mut() {
            open.awaited.remove(&server);
            if open.record.servers.contains(&server) && !open.is_ended() {
                open.trouble(now, Trouble::Lost(server));
            }
        }
    }

    fn heard(&mut self, now: Duration, from: ServerId, message: &ToMaster) {
        let shuffle = match message {
            ToMaster::Join(shuffle)
            | ToMaster::Sealed { shuffle, .. }
            | ToMaster::Differs { shuffle, .. }
            | ToMaster::Damaged { shuffle, .. }
            | ToMaster::Filled { shuffle, .. }
            | ToMaster::Uploaded { shuffle, .. }
            | ToMaster::Full { shuffle, .. }
            | ToMaster::Poisoned { shuffle, .. }
            | ToMaster::Slow { shuffle, .. }
            | ToMaster::Measured { shuffle, .. }
            | ToMaster::Used { shuffle, .. } => shuffle,
            ToMaster::Transferred { transfer, .. } => &transfer.shuffle,
            ToMaster::Commit { commit, .. } => &commit.shuffle,
        };
        let Some(open) = self.shuffles.get_mut(shuffle) else {
            return;
        };
        match message {
            ToMaster::Join(_) => {
                if open.record.began.is_none() {
                    open.record.began = Some(now);
                    open.enter(now, Phase::Transfer);
                }
            }
            ToMaster::Transferred {
                transfer, tally, ..
            } => {
                let map = u64::from(transfer.map);
                if transfer.map >= open.record.maps {
                    return;
                }
                open.record.transfers += 1;
                open.record.repeated += u64::from(open.transferred.contains(map));
                open.transferred.insert(map);
                open.record.moved.add(tally);
            }
            ToMaster::Commit { commit, .. } => {
                open.asked = commit.groups.values().map(|group| group.tally).sum();
                open.measured.clear();
                open.enter(now, Phase::Barrier);
            }
            ToMaster::Damaged { group, .. } => open.trouble(now, Trouble::Damaged(group.server)),
            ToMaster::Poisoned { group, .. } => open.trouble(now, Trouble::Poisoned(group.server)),
            // All processes say it, as long as it is so.
            ToMaster::Slow { server, .. } => {
                let slow = Trouble::Slow(*server);
                let mut known = open.record.troubles.iter();
                if !known.any(|(_, trouble)| *trouble == slow) {
                    open.trouble(now, slow);
                }
            }
            ToMaster::Measured {
                group,
                partitions,
                sizes,
                ..
            } => {
                let first = partitions.first().unwrap_or_default();
                let sizes = (partitions.clone(), sizes.clone());
                open.measured.insert((group.epoch, first), sizes);
            }
            ToMaster::Used { usage, .. } => {
                open.record.usage.add(usage);
                open.awaited.remove(&from);
            }
            ToMaster::Sealed { .. }
            | ToMaster::Differs { .. }
            | ToMaster::Filled { .. }
            | ToMaster::Uploaded { .. }
            | ToMaster::Full { .. } => {}
        }
    }

    /// The master wants something done.
    pub fn follows(&mut self, now: Duration, effect: &MasterEffect) {
        match effect {
            MasterEffect::Send { to, message } => match message {
                ToNode::Plan(plan) => {
                    if let Some(open) = self.shuffles.get_mut(&plan.shuffle) {
                        open.record.generation = plan.generation;
                        let servers = plan.groups.iter().flat_map(|group| group.holders());
                        open.record.servers.extend(servers);
                    }
                }
                ToNode::Close(shuffle) => {
                    if let Some(open) = self.shuffles.get_mut(shuffle)
                        && open.is_ended()
                    {
                        open.awaited.insert(*to);
                    }
                }
                ToNode::Committed {
                    shuffle, result, ..
                } => {
                    if let Some(open) = self.shuffles.get_mut(shuffle) {
                        let is_read = result.is_ok();
                        open.enter(
                            now,
                            if is_read {
                                Phase::Read
                            } else {
                                Phase::Transfer
                            },
                        );
                        if is_read {
                            open.record.committed = Some(open.asked);
                            let measured = core::mem::take(&mut open.measured);
                            open.record.sizes = (!measured.is_empty()).then(|| sum(&measured));
                        }
                    }
                }
                ToNode::Seal(_) => {}
            },
            MasterEffect::Invalidate { shuffle, .. } => {
                if let Some(open) = self.shuffles.get_mut(shuffle)
                    && open.record.phase != Phase::Waiting
                {
                    open.enter(now, Phase::Transfer);
                }
            }
            MasterEffect::NotDeterministic { shuffle, map } => {
                if let Some(open) = self.shuffles.get_mut(shuffle) {
                    open.trouble(now, Trouble::Differs(*map));
                }
            }
            MasterEffect::Drained(_) => {}
        }
    }

    /// What is known of a shuffle that runs, or has just ended.
    pub fn record(&self, now: Duration, shuffle: ShuffleId) -> Option<Record> {
        let open = self.shuffles.get(&shuffle)?;
        let mut record = open.record.clone();
        if record.ended.is_none() {
            record.spent[record.phase as usize] += now.saturating_sub(open.since);
        }
        Some(record)
    }

    /// Takes the records of shuffles that have ended, and are whole or have waited long enough.
    pub fn take_ended(&mut self, now: Duration) -> Vec<Record> {
        if self.ended == 0 {
            return Vec::new();
        }
        let is_over = |open: &Open| {
            let ended = open.record.ended;
            ended.is_some_and(|ended| open.awaited.is_empty() || ended + PATIENCE <= now)
        };
        let over = self.shuffles.iter().filter(|(_, open)| is_over(open));
        let over: Vec<ShuffleId> = over.map(|(&shuffle, _)| shuffle).collect();
        let over = over
            .iter()
            .filter_map(|shuffle| self.shuffles.remove(shuffle));
        let over: Vec<Record> = over.map(|open| open.record).collect();
        self.ended -= over.len();
        over
    }
}

/// Rows of a partition may be in groups of several epochs.
fn sum(measured: &Measured) -> Sizes {
    let pairs = measured.values();
    let pairs = pairs.flat_map(|(partitions, sizes)| partitions.iter().zip(sizes.iter().copied()));
    let mut sizes: Vec<(u32, u64)> = pairs
        .filter_map(|(partition, bytes)| Some((u32::try_from(partition).ok()?, bytes)))
        .collect();
    sizes.sort_unstable();
    sizes.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
    Sizes::of(&sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use treadle_shuffle::{AttemptId, Chosen, Commit, GroupId, Tenant, Transfer};

    use alloc::collections::BTreeMap;
    use alloc::sync::Arc;

    const S: ShuffleId = ShuffleId(1);
    const A: ServerId = ServerId {
        node: 1,
        incarnation: 1,
    };
    const B: ServerId = ServerId {
        node: 2,
        incarnation: 1,
    };

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn heard(recorder: &mut Recorder, at: u64, from: ServerId, message: ToMaster) {
        recorder.saw(seconds(at), &MasterEvent::Message { from, message });
    }

    fn spec() -> Spec {
        Spec {
            tenant: Tenant::default(),
            maps: 2,
            partitions: 4,
            outputs: Runs::range(0, 4),
            aligned: None,
            copies: 1,
            is_handed_over: false,
            expected: 0,
            preferred: Vec::new(),
            committed: None,
        }
    }

    fn transferred(recorder: &mut Recorder, at: u64, map: u32) {
        let transfer = Transfer {
            shuffle: S,
            map,
            attempt: AttemptId(at),
        };
        let tally = Tally {
            rows: 5,
            bytes: 50,
            digest: 1,
        };
        let groups = Vec::new();
        let message = ToMaster::Transferred {
            transfer,
            groups,
            tally,
        };
        heard(recorder, at, A, message);
    }

    fn committed(recorder: &mut Recorder, at: u64) {
        let result = Ok(Generation(1));
        let message = ToNode::Committed {
            shuffle: S,
            ask: 1,
            result,
        };
        recorder.follows(seconds(at), &MasterEffect::Send { to: A, message });
    }

    fn asked(recorder: &mut Recorder, at: u64) {
        let group = GroupId {
            epoch: Generation(1),
            server: A,
        };
        let tally = Tally {
            rows: 10,
            bytes: 100,
            digest: 2,
        };
        let chosen = Chosen {
            tally,
            ..Chosen::default()
        };
        let commit = Commit {
            keeps: false,
            shuffle: S,
            winners: Arc::default(),
            groups: BTreeMap::from([(group, chosen)]),
        };
        heard(recorder, at, A, ToMaster::Commit { ask: 1, commit });
    }

    fn measured(recorder: &mut Recorder, epoch: u32, server: ServerId, sizes: &[u64]) {
        let group = GroupId {
            epoch: Generation(epoch),
            server,
        };
        let message = ToMaster::Measured {
            shuffle: S,
            group,
            partitions: Runs::range(0, sizes.len() as u64),
            sizes: sizes.to_vec(),
        };
        heard(recorder, 0, server, message);
    }

    #[test]
    fn phases_add_up_also_when_rows_are_lost() {
        let mut recorder = Recorder::default();
        recorder.registered(seconds(1), S, &spec());
        heard(&mut recorder, 3, A, ToMaster::Join(S));
        transferred(&mut recorder, 4, 0);
        transferred(&mut recorder, 5, 1);
        asked(&mut recorder, 6);
        committed(&mut recorder, 7);
        recorder.follows(
            seconds(10),
            &MasterEffect::Invalidate {
                shuffle: S,
                maps: Runs::one(1),
                outputs: false,
            },
        );
        transferred(&mut recorder, 12, 1);
        asked(&mut recorder, 13);
        committed(&mut recorder, 15);
        let running = recorder.record(seconds(16), S).unwrap();
        assert_eq!(running.spent, [2, 6, 3, 4].map(seconds));
        recorder.saw(seconds(20), &MasterEvent::End(S));
        let [record] = &recorder.take_ended(seconds(20))[..] else {
            panic!("it has ended, and nobody is asked what it did");
        };
        assert_eq!(record.spent, [2, 6, 3, 8].map(seconds));
        assert_eq!((record.transfers, record.repeated), (3, 1));
        assert_eq!(record.moved.bytes, 150);
        assert_eq!(record.committed.unwrap().bytes, 100);
        assert!(recorder.take_ended(seconds(99)).is_empty());
    }

    #[test]
    fn a_record_waits_for_what_processes_did_but_not_for_long() {
        let end = |recorder: &mut Recorder| {
            recorder.registered(seconds(0), S, &spec());
            recorder.saw(seconds(1), &MasterEvent::End(S));
            for to in [A, B] {
                let message = ToNode::Close(S);
                recorder.follows(seconds(1), &MasterEffect::Send { to, message });
            }
            let usage = Usage {
                reads: 3,
                ..Usage::default()
            };
            heard(recorder, 2, A, ToMaster::Used { shuffle: S, usage });
        };
        let mut recorder = Recorder::default();
        end(&mut recorder);
        assert!(recorder.take_ended(seconds(5)).is_empty());
        assert_eq!(recorder.take_ended(seconds(6))[0].usage.reads, 3);
        end(&mut recorder);
        recorder.saw(seconds(3), &MasterEvent::Lost(B));
        assert_eq!(recorder.take_ended(seconds(3)).len(), 1);
    }

    #[test]
    fn copies_count_once_and_epochs_add_up() {
        let mut recorder = Recorder::default();
        recorder.registered(seconds(0), S, &spec());
        asked(&mut recorder, 0);
        measured(&mut recorder, 1, A, &[1, 0, 7, 2]);
        measured(&mut recorder, 1, B, &[1, 0, 7, 2]);
        measured(&mut recorder, 2, B, &[0, 0, 0, 3]);
        committed(&mut recorder, 1);
        let sizes = recorder.record(seconds(1), S).unwrap().sizes.unwrap();
        assert_eq!((sizes.count, sizes.bytes, sizes.empty), (4, 13, 1));
        assert_eq!(sizes.bars, [1, 0, 7, 5]);
        assert_eq!(sizes.largest[..2], [(2, 7), (3, 5)]);
        assert!(sizes.quantiles.contains(&(50, 1)));
    }
}
