//! A server in a process with a memory limit, whose allocators keep what was freed: whatever comes in whatever
//! order, the process stays below its limit, and all that waits is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use treadle_shuffle::block::Table;
use treadle_shuffle::{
    BatchId, Config, Expected, Fetch, FromServer, LinkId, MasterEvent, Plan, Push, ReadPiece,
    Refusal, ServerEffect, ServerEvent, ShuffleId, ToMaster, ToNode, ToSend, ToServer, Verdict,
};

use crate::server::{compare, is_acked};
use crate::support::{C, Head, Holder, S, batch, spec, transfer};

/// Written while partitions of [`S`] are read.
const OTHER: ShuffleId = ShuffleId(8);
const PARTITIONS: u32 = 3;
/// What the process takes beside rows, and what it may take.
const OTHERS: u64 = 100_000;
const LIMIT: u64 = 800_000;
/// Batches of fewer bytes are in another allocator's memory than larger ones.
const LARGE: u64 = 40_000;

/// What a process takes, by allocator: each serves what it keeps itself before it asks the system.
#[derive(Default)]
struct Memory {
    used: [u64; 2],
    kept: [u64; 2],
    most: u64,
}

impl Memory {
    fn kind(length: u64) -> usize {
        usize::from(length >= LARGE)
    }

    fn takes(&self) -> u64 {
        OTHERS + self.used.iter().chain(&self.kept).sum::<u64>()
    }

    fn allocate(&mut self, kind: usize, bytes: u64) {
        self.kept[kind] -= bytes.min(self.kept[kind]);
        self.used[kind] += bytes;
        self.most = self.most.max(self.takes());
    }

    fn free(&mut self, kind: usize, bytes: u64) {
        self.used[kind] -= bytes;
        self.kept[kind] += bytes;
    }

    fn give_back(&mut self, most: u64) {
        for kind in [1, 0] {
            let missing = self.takes().saturating_sub(most);
            self.kept[kind] -= missing.min(self.kept[kind]);
        }
    }
}

/// A push that was let in, and the bytes of it that are here.
struct Coming {
    push: Push,
    here: u64,
}

struct Run {
    holder: Holder,
    memory: Memory,
    plans: BTreeMap<ShuffleId, Arc<Plan>>,
    /// All batches, as their writers know them.
    batches: BTreeMap<(ShuffleId, BatchId), (Push, Table)>,
    coming: Vec<Coming>,
    files: BTreeMap<u64, Vec<(ShuffleId, BatchId)>>,
    writing: Option<u64>,
    /// What reads have loaded, by allocator, and what is not sent, in bytes.
    loaded: BTreeMap<u64, Vec<u64>>,
    sending: Vec<(u64, u64)>,
    acked: usize,
    sent: usize,
    largest: u64,
}

impl Run {
    fn new() -> Self {
        let mut head = Head::new(1, spec(1000, PARTITIONS));
        let shuffle = OTHER;
        head.event(MasterEvent::Register {
            shuffle,
            spec: spec(1000, PARTITIONS),
        });
        head.hear(0, ToMaster::Join(OTHER));
        let plans = [S, OTHER].map(|shuffle| (shuffle, head.plan_of(shuffle).expect("a plan")));
        let config = Config {
            run: LIMIT / 8,
            ..Config::default()
        };
        let mut run = Self {
            holder: Holder::new(0, config),
            memory: Memory::default(),
            plans: plans.into(),
            batches: BTreeMap::new(),
            coming: Vec::new(),
            files: BTreeMap::new(),
            writing: None,
            loaded: BTreeMap::new(),
            sending: Vec::new(),
            acked: 0,
            sent: 0,
            largest: 0,
        };
        run.holder.is_stuck = true;
        for plan in run.plans.values().cloned().collect::<Vec<_>>() {
            let (link, message) = (LinkId::ONLY, ToNode::Plan(plan));
            run.event(ServerEvent::Master { link, message });
        }
        run.measure(false);
        // Rows may take nearly all of it: so the limit of the process is what holds.
        run.event(ServerEvent::Budget {
            target: LIMIT / 2,
            limit: LIMIT,
        });
        run
    }

    fn measure(&mut self, is_least: bool) {
        self.event(ServerEvent::Measured {
            process: self.memory.takes(),
            limit: LIMIT,
            is_least,
        });
    }

    fn event(&mut self, event: ServerEvent) {
        let effects = self.holder.event(event);
        let mut most = None;
        for effect in effects {
            match effect {
                ServerEffect::Admit { push, .. } => self.coming.push(Coming { push, here: 0 }),
                ServerEffect::Drop { shuffle, batch, .. } => {
                    let length = self.batches[&(shuffle, batch)].0.length;
                    self.memory.free(Memory::kind(length), length);
                }
                ServerEffect::Spill {
                    run,
                    shuffle,
                    batches,
                    ..
                } => {
                    self.writing = Some(run);
                    let named = batches.into_iter().map(|batch| (shuffle, batch));
                    self.files.insert(run, named.collect());
                }
                ServerEffect::Load {
                    load,
                    run,
                    partition,
                    ..
                } => self.load(load, run, partition),
                ServerEffect::Send(ToSend { load, pieces, .. }) => {
                    let bytes = pieces.iter().map(|sent| sent.piece.bytes).sum();
                    self.largest = self.largest.max(bytes);
                    self.memory.allocate(1, bytes);
                    self.sending.push((load, bytes));
                    self.sent += 1;
                }
                ServerEffect::Forget { load } => {
                    for bytes in self.loaded.remove(&load).unwrap_or_default() {
                        self.memory.free(1, bytes);
                    }
                }
                ServerEffect::Reply { message, .. } => {
                    let is_it = matches!(message, FromServer::Acked { .. });
                    assert!(is_it, "{message:?}");
                    self.acked += 1;
                }
                ServerEffect::Measure { most: told } => most = Some(told),
                _ => {}
            }
        }
        if let Some(most) = most {
            self.memory.give_back(most);
            self.measure(true);
        }
    }

    fn load(&mut self, load: u64, run: u64, partition: u32) {
        let pieces = self.files[&run].iter().filter_map(|name| {
            let piece = self.batches[name].1.find(partition)?;
            Some(ReadPiece::new(name.1, &piece))
        });
        let pieces: Vec<ReadPiece> = pieces.collect();
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        self.memory.allocate(1, bytes);
        self.loaded.entry(load).or_default().push(bytes);
        let pieces = Some(pieces);
        self.event(ServerEvent::Loaded { load, run, pieces });
    }

    fn offer(&mut self, shuffle: ShuffleId, rows: u64) {
        let map = self.batches.len() as u32;
        let transfer = treadle_shuffle::Transfer {
            shuffle,
            ..transfer(map, u64::from(map) + 1)
        };
        let pieces: Vec<(u32, u64)> = (0..PARTITIONS).map(|partition| (partition, rows)).collect();
        let one = batch(transfer, self.plans[&shuffle].groups[0].id, 0, &pieces);
        let push = one.0;
        self.batches.insert((shuffle, push.batch), one);
        let message = ToServer::Push(push);
        self.event(ServerEvent::Message { from: C, message });
    }

    /// Half of what is missing comes, or all of it.
    fn come(&mut self, at: usize, is_all: bool) {
        let Coming { push, here } = &mut self.coming[at];
        let missing = push.length - *here;
        let bytes = if is_all { missing } else { missing / 2 };
        *here += bytes;
        self.memory.allocate(Memory::kind(push.length), bytes);
        if is_all {
            let push = self.coming.remove(at).push;
            let table = Some(self.batches[&(push.shuffle, push.batch)].1.clone());
            self.event(ServerEvent::Arrived {
                from: C,
                push,
                table,
            });
        }
    }

    fn step(&mut self, step: &Step, written: ShuffleId) {
        match step {
            Step::Offer(rows) => self.offer(written, *rows),
            Step::Come(at, is_all) if !self.coming.is_empty() => {
                self.come(at.index(self.coming.len()), *is_all);
            }
            Step::Written => {
                if let Some(run) = self.writing.take() {
                    let written = Ok(());
                    self.event(ServerEvent::Spilled { run, written });
                }
            }
            Step::Look => self.measure(false),
            Step::Fetch(partition) if written == OTHER => self.fetch(*partition),
            Step::Sent(at) if !self.sending.is_empty() => {
                self.send(at.index(self.sending.len()));
            }
            Step::Come(..) | Step::Fetch(_) | Step::Sent(_) => {}
        }
    }

    /// What was read is written to its reader.
    fn send(&mut self, at: usize) {
        let (load, bytes) = self.sending.remove(at);
        self.memory.free(1, bytes);
        self.event(ServerEvent::Sent { load });
    }

    fn fetch(&mut self, partition: u32) {
        let plan = &self.plans[&S];
        let message = ToServer::Fetch(Fetch {
            read: self.holder.server.waiting() as u64 + self.sent as u64 * 1000,
            shuffle: S,
            generation: plan.generation,
            group: plan.groups[0].id,
            partition,
            maps: None,
            reader: None,
        });
        self.event(ServerEvent::Message { from: C, message });
    }

    /// All that was begun ends, and what waits is served.
    fn drain(&mut self) {
        loop {
            let before = (self.acked, self.sent);
            while !self.coming.is_empty() {
                self.come(0, true);
            }
            self.step(&Step::Written, OTHER);
            while !self.sending.is_empty() {
                self.send(0);
            }
            let is_idle = self.coming.is_empty() && self.sending.is_empty();
            if is_idle && self.writing.is_none() && before == (self.acked, self.sent) {
                return;
            }
        }
    }

    fn seal(&mut self) {
        let mut expected = Expected::default();
        for ((_, id), (push, _)) in self.batches.iter().filter(|((of, _), _)| *of == S) {
            expected.winners.push(id.map, id.attempt);
            expected.tally.add(&push.tally);
        }
        let plan = self.plans[&S].clone();
        assert_eq!(
            compare(&mut self.holder, &plan, expected),
            Verdict::Complete
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A map offers so many rows for each partition.
    Offer(u64),
    Come(Index, bool),
    Written,
    Look,
    Fetch(u32),
    Sent(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let rows = prop_oneof![1..100_u64, 500..3000_u64];
    prop_oneof![
        4 => rows.prop_map(Step::Offer),
        4 => (any::<Index>(), any::<bool>()).prop_map(|(at, is_all)| Step::Come(at, is_all)),
        1 => Just(Step::Written),
        1 => Just(Step::Look),
        1 => (0..PARTITIONS).prop_map(Step::Fetch),
        1 => any::<Index>().prop_map(Step::Sent),
    ]
}

proptest! {
    #[test]
    fn a_process_stays_below_its_limit_and_serves_all(
        before in prop::collection::vec(step(), 0..120),
        after in prop::collection::vec(step(), 0..120),
    ) {
        let mut run = Run::new();
        for step in &before {
            run.step(step, S);
        }
        run.drain();
        prop_assert_eq!(run.acked, run.batches.len());
        run.seal();
        for step in &after {
            run.step(step, OTHER);
        }
        run.drain();
        prop_assert_eq!(run.acked, run.batches.len());
        prop_assert_eq!(run.holder.server.waiting(), 0);
        // The one thing that is larger than what it may be: a read that had to be alone.
        let alone = OTHERS + 2 * run.largest;
        prop_assert!(run.memory.most <= LIMIT.max(alone), "{} bytes", run.memory.most);
    }
}

#[test]
fn a_push_that_has_room_does_not_hide_that_one_before_it_has_none() {
    let mut run = Run::new();
    for _ in 0..9 {
        run.offer(S, 2900);
    }
    run.drain();
    run.seal();
    run.fetch(0);
    run.offer(OTHER, 3200);
    while run.writing.is_some() {
        run.step(&Step::Written, OTHER);
    }
    // What the read was granted counts until it is measured again. The second push has room all the same.
    run.offer(OTHER, 1);
    assert!(run.coming.is_empty() && run.sending.len() == 1);
    run.send(0);
    assert_eq!(run.coming.len(), 2);
}

#[test]
fn a_push_that_will_never_have_room_holds_up_nobody() {
    let (mut holder, plan) = crate::server::holder();
    let group = plan.groups[0].id;
    // What was freed may be part of what it takes now, and not of what it took before.
    measured(&mut holder, OTHERS, LIMIT, true);
    measured(&mut holder, LIMIT - 1, LIMIT, false);
    let [large, small] =
        [(0, 90_000), (1, 1)].map(|(map, rows)| batch(transfer(map, 10), group, 0, &[(1, rows)]).0);
    assert!(large.length < LIMIT && large.length > LIMIT - OTHERS);
    let effects = holder.message(ToServer::Push(large));
    let Some(FromServer::Refused {
        reason: Refusal::NoRoom(reason),
        ..
    }) = crate::support::answer(&effects)
    else {
        panic!("{effects:?}");
    };
    assert!(reason.contains("write smaller rows"), "{reason}");
    holder.message(ToServer::Push(small));
    let effects = measured(&mut holder, OTHERS, LIMIT, true);
    assert!(effects.contains(&ServerEffect::Admit {
        from: C,
        push: small
    }));
}

#[test]
fn a_read_of_nothing_needs_no_room() {
    let mut run = Run::new();
    run.seal();
    run.event(ServerEvent::Measured {
        process: LIMIT + 1,
        limit: LIMIT,
        is_least: false,
    });
    run.fetch(0);
    assert_eq!(run.sent, 1);
}

/// A holder in a process that takes `process` bytes, may take `limit`, and gives nothing back.
fn measured(holder: &mut Holder, process: u64, limit: u64, is_least: bool) -> Vec<ServerEffect> {
    holder.event(ServerEvent::Measured {
        process,
        limit,
        is_least,
    })
}

#[test]
fn what_was_granted_counts_until_a_measurement_has_it() {
    let (mut holder, plan) = crate::server::holder();
    let [first, second] =
        [0, 1].map(|map| batch(transfer(map, 10), plan.groups[0].id, 0, &[(1, 9000)]));
    measured(&mut holder, 0, 146_000, true);
    holder.message(ToServer::Push(first.0));
    let asked = holder.message(ToServer::Push(second.0));
    let [ServerEffect::Measure { most }] = asked[..] else {
        panic!("it asks once: {asked:?}");
    };
    assert!(most < 146_000 - first.0.length - second.0.length);
    // Nothing is here of the first, and it may come any time.
    assert_eq!(measured(&mut holder, 0, 146_000, true), []);
    // All of it is here, and counts once.
    assert!(is_acked(holder.arrive(first.0, Some(first.1))));
    let effects = measured(&mut holder, first.0.length, 146_000, true);
    assert!(effects.contains(&ServerEffect::Admit {
        from: C,
        push: second.0
    }));
}

#[test]
fn who_waits_for_memory_that_no_rows_take_is_told_so_after_a_while() {
    let (mut holder, plan) = crate::server::holder();
    let (push, _) = batch(transfer(0, 10), plan.groups[0].id, 0, &[(1, 1)]);
    // It took less once.
    measured(&mut holder, 1 << 20, 7 << 20, false);
    measured(&mut holder, 7 << 20, 7 << 20, false);
    holder.message(ToServer::Push(push));
    assert_eq!(measured(&mut holder, 7 << 20, 7 << 20, true), []);
    holder.now = holder.server.next_deadline().expect("it waits");
    let effects = holder.event(ServerEvent::Tick);
    let Some(FromServer::Refused {
        reason: Refusal::NoRoom(reason),
        ..
    }) = crate::support::answer(&effects)
    else {
        panic!("{effects:?}");
    };
    assert!(
        reason.contains("takes 7 of the 7 MiB that it may take: raise"),
        "{reason}"
    );
}
