//! A server beside a naive model: a dictionary of partitions and the rows that each attempt has there.

use std::collections::BTreeMap;

use proptest::prelude::*;
use treadle_shuffle::{
    AttemptId, BatchId, Config, Expected, Fetch, Generation, MapRange, Plan, ReadPiece, Seal,
    ServerEffect, ServerEvent, Tally, ToMaster, ToNode, ToSend, ToServer, Verdict,
};

use crate::support::{C, Head, Holder, S, batch, spec, transfer};

const MAPS: u32 = 4;
const PARTITIONS: u32 = 5;

/// What happens to a server.
#[derive(Clone, Debug)]
enum Step {
    /// A batch comes: map, attempt, number, and rows by partition.
    Push(u32, u64, u32, Vec<u64>),
    /// What is being written is there, or failed.
    Spilled(bool),
    Disconnect,
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let rows = prop::collection::vec(0..4_u64, PARTITIONS as usize);
    prop_oneof![
        6 => (0..MAPS, 0..2_u64, 0..3_u32, rows).prop_map(|(m, a, n, r)| Step::Push(m, a, n, r)),
        3 => any::<bool>().prop_map(Step::Spilled),
        1 => Just(Step::Disconnect),
        1 => Just(Step::Tick),
    ]
}

/// What the model keeps of a batch: its rows by partition.
type Model = BTreeMap<(u32, u64, u32), Vec<u64>>;

struct Run {
    holder: Holder,
    plan: std::sync::Arc<Plan>,
    model: Model,
    /// Batches in files, as the host has them.
    runs: BTreeMap<u64, Vec<BatchId>>,
    writing: Option<(u64, Vec<BatchId>)>,
}

impl Run {
    fn new(budget: u64, stripes: u32) -> Self {
        let plan = Head::new(1, spec(MAPS, PARTITIONS)).plan();
        let config = Config {
            stripes,
            ..Config::default()
        };
        let mut holder = Holder::new(0, config);
        holder.told(ToNode::Plan(plan.clone()));
        holder.event(ServerEvent::Budget {
            target: budget,
            limit: 2 * budget,
        });
        Self {
            holder,
            plan,
            model: Model::new(),
            runs: BTreeMap::new(),
            writing: None,
        }
    }

    fn batch(
        &self,
        key: (u32, u64, u32),
    ) -> (treadle_shuffle::Push, treadle_shuffle::block::Table) {
        let (map, attempt, number) = key;
        let rows = self.model.get(&key).cloned().unwrap_or_default();
        let pieces: Vec<(u32, u64)> = (0..).zip(rows).collect();
        let transfer = transfer(map, 10 * u64::from(map) + attempt);
        batch(transfer, self.plan.groups[0].id, number, &pieces)
    }

    fn note(&mut self, effects: &[ServerEffect]) {
        for effect in effects {
            if let ServerEffect::Spill { run, batches, .. } = effect {
                self.writing = Some((*run, batches.clone()));
            }
        }
    }

    fn step(&mut self, step: Step) {
        let effects = match step {
            Step::Push(map, attempt, number, rows) => {
                let key = (map, attempt, number);
                let is_new = !self.model.contains_key(&key);
                self.model.entry(key).or_insert(rows);
                let (push, table) = self.batch(key);
                let effects = self.holder.message(ToServer::Push(push));
                self.note(&effects);
                let is_admitted = effects.contains(&ServerEffect::Admit { from: C, push });
                if !is_admitted && is_new {
                    // It waits for room: the writer keeps it.
                    self.model.remove(&key);
                    self.holder.event(ServerEvent::Disconnected(C))
                } else if is_admitted {
                    let table = Some(table);
                    self.holder.event(ServerEvent::Arrived {
                        from: C,
                        push,
                        table,
                    })
                } else {
                    effects
                }
            }
            Step::Spilled(is_written) => {
                let Some((run, batches)) = self.writing.take() else {
                    return;
                };
                if is_written {
                    self.runs.insert(run, batches);
                }
                self.holder.event(ServerEvent::Spilled {
                    run,
                    written: is_written.then_some(()).ok_or_else(|| "full".into()),
                })
            }
            Step::Disconnect => self.holder.event(ServerEvent::Disconnected(C)),
            Step::Tick => {
                if let Some(at) = self.holder.server.next_deadline() {
                    self.holder.now = at;
                }
                self.holder.event(ServerEvent::Tick)
            }
        };
        self.note(&effects);
    }

    /// Commits these attempts, and says what came of it.
    fn seal(&mut self, winners: &[u64]) -> Verdict {
        let mut expected = Expected::default();
        for (map, &attempt) in (0..).zip(winners) {
            let keys = self
                .model
                .keys()
                .filter(|key| (key.0, key.1) == (map, attempt));
            let tallies = keys.map(|&key| self.batch(key).0.tally);
            let tallies: Vec<Tally> = tallies.collect();
            if !tallies.is_empty() {
                let id = AttemptId(10 * u64::from(map) + attempt);
                expected.winners.push(map, id);
                expected.tally.add(&tallies.into_iter().sum());
            }
        }
        let seal = Seal {
            shuffle: S,
            generation: Generation(1),
            group: self.plan.groups[0].id,
            round: 1,
            expected,
        };
        let effects = self.holder.told(ToNode::Seal(seal));
        self.note(&effects);
        let verdict = effects.iter().find_map(|effect| match effect {
            ServerEffect::Report {
                message: ToMaster::Sealed { verdict, .. },
                ..
            } => Some(*verdict),
            _ => None,
        });
        verdict.expect("it was compared")
    }

    /// Reads a partition, or some maps of it: the maps and rows that come.
    fn read(&mut self, partition: u32, maps: Option<MapRange>) -> Vec<(u32, u64)> {
        let mut effects = self.holder.message(ToServer::Fetch(Fetch {
            read: 1,
            shuffle: S,
            generation: Generation(1),
            group: self.plan.groups[0].id,
            partition,
            maps,
            reader: None,
        }));
        loop {
            let loads = effects.iter().filter_map(|effect| match effect {
                ServerEffect::Load {
                    load, run, maps, ..
                } => Some((*load, *run, *maps)),
                _ => None,
            });
            let loads: Vec<(u64, u64, Option<MapRange>)> = loads.collect();
            if loads.is_empty() {
                break;
            }
            effects = Vec::new();
            for (load, run, maps) in loads {
                let is_in = |id: &&BatchId| maps.is_none_or(|maps: MapRange| maps.contains(id.map));
                let pieces = self.runs[&run].iter().filter(is_in).filter_map(|id| {
                    let key = (id.map, id.attempt.0 - 10 * u64::from(id.map), id.number);
                    let piece = self.batch(key).1.find(partition)?;
                    Some(ReadPiece::new(*id, &piece))
                });
                let pieces = Some(pieces.collect());
                effects.extend(self.holder.event(ServerEvent::Loaded { load, run, pieces }));
            }
        }
        let sent = effects.iter().find_map(|effect| match effect {
            ServerEffect::Send(ToSend { pieces, .. }) => Some(pieces.clone()),
            _ => None,
        });
        let sent = sent.unwrap_or_else(|| panic!("nothing was sent: {effects:?}"));
        sent.iter()
            .map(|sent| (sent.piece.batch.map, sent.piece.rows))
            .collect()
    }
}

proptest! {
    #[test]
    fn a_server_returns_what_the_dictionary_has(
        steps in prop::collection::vec(step(), 0..60),
        winners in prop::collection::vec(0..2_u64, MAPS as usize),
        budget in prop::sample::select(vec![200_u64, 600, 1 << 30]),
        stripes in 1..=MAPS,
        range in prop::option::of((0..=MAPS, 0..=MAPS)),
    ) {
        let mut run = Run::new(budget, stripes);
        let maps = range.map(|(first, end)| MapRange { first, end });
        for step in steps {
            run.step(step);
        }
        prop_assert_eq!(run.seal(&winners), Verdict::Complete);
        for partition in 0..PARTITIONS {
            let mut expected = Vec::new();
            for (&(map, attempt, _), rows) in &run.model {
                let count = rows[partition as usize];
                let is_in = maps.is_none_or(|maps| maps.contains(map));
                if attempt == winners[map as usize] && count > 0 && is_in {
                    expected.push((map, count));
                }
            }
            prop_assert_eq!(run.read(partition, maps), expected, "partition {}", partition);
        }
        run.holder.told(ToNode::Close(S));
        prop_assert!(run.holder.server.is_empty());
        prop_assert!(run.holder.store.is_empty());
        prop_assert_eq!(run.holder.server.resident(), 0);
    }
}
