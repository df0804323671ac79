//! Any message of the shuffle plane, also for the tests of those whose packets carry them.

use std::time::Duration;

use proptest::prelude::*;
use treadle_shuffle::{
    Answer, ApplicationId, Ask, AttemptId, BatchId, Chosen, Commit, CommitError, Expected, Fetch,
    FromServer, Generation, Group, GroupId, MapRange, Plan, Push, ReadPiece, Receipt, Refusal,
    Seal, ServerId, Share, ShuffleId, Tally, Tenant, ToMaster, ToNode, ToServer, Transfer,
    Uploaded, Verdict,
};
use treadle_types::Runs;

fn number() -> BoxedStrategy<u32> {
    prop_oneof![0..200u32, any::<u32>()].boxed()
}

fn shuffle() -> BoxedStrategy<ShuffleId> {
    any::<u64>().prop_map(ShuffleId).boxed()
}

fn attempt() -> BoxedStrategy<AttemptId> {
    any::<u64>().prop_map(AttemptId).boxed()
}

fn server() -> BoxedStrategy<ServerId> {
    (number(), number())
        .prop_map(|(node, incarnation)| ServerId { node, incarnation })
        .boxed()
}

fn group() -> BoxedStrategy<GroupId> {
    (number(), server())
        .prop_map(|(epoch, server)| GroupId {
            epoch: Generation(epoch),
            server,
        })
        .boxed()
}

fn groups() -> BoxedStrategy<Vec<GroupId>> {
    prop::collection::btree_set(group(), 0..6)
        .prop_map(|groups| groups.into_iter().collect())
        .boxed()
}

fn batch() -> BoxedStrategy<BatchId> {
    (number(), attempt(), number())
        .prop_map(|(map, attempt, number)| BatchId {
            map,
            attempt,
            number,
        })
        .boxed()
}

fn transfer() -> BoxedStrategy<Transfer> {
    (shuffle(), number(), attempt())
        .prop_map(|(shuffle, map, attempt)| Transfer {
            shuffle,
            map,
            attempt,
        })
        .boxed()
}

fn tally() -> BoxedStrategy<Tally> {
    any::<[u64; 3]>()
        .prop_map(|[rows, bytes, digest]| Tally {
            rows,
            bytes,
            digest,
        })
        .boxed()
}

fn missing() -> BoxedStrategy<Option<u32>> {
    prop::option::of(number()).boxed()
}

pub(crate) fn receipt() -> BoxedStrategy<Receipt> {
    let share = (attempt(), tally());
    let shares = prop::collection::btree_map(group(), share, 0..6);
    (transfer(), shares)
        .prop_map(|(transfer, shares)| Receipt {
            transfer,
            shares: shares
                .into_iter()
                .map(|(group, (holder, tally))| Share {
                    group,
                    holder,
                    tally,
                })
                .collect(),
        })
        .boxed()
}

fn expected() -> BoxedStrategy<Expected> {
    let winners = prop::collection::btree_map(number(), attempt(), 0..6);
    (winners, tally())
        .prop_map(|(winners, tally)| Expected {
            winners: winners.into_iter().collect(),
            tally,
        })
        .boxed()
}

fn plan() -> BoxedStrategy<Plan> {
    let homes = prop::collection::vec(prop::option::of(0..4usize), 0..60);
    (shuffle(), number(), groups(), homes)
        .prop_map(|(shuffle, maps, ids, homes)| {
            let partitions = homes.len() as u32;
            let generation = ids.last().map_or(Generation(1), |group| group.epoch);
            let other = ServerId {
                node: maps,
                incarnation: 7,
            };
            let of = |place: usize| -> Runs {
                let numbers = (0..).zip(&homes);
                let here = numbers.filter(|(_, home)| **home == Some(place));
                here.map(|(number, _)| number).collect()
            };
            let groups = ids.into_iter().enumerate().map(|(place, id)| Group {
                copies: if place % 2 == 0 {
                    vec![id.server]
                } else {
                    vec![id.server, other]
                },
                filling: (place % 3 == 1).then_some(other),
                uploaded: (place % 4 == 1).then(|| Uploaded {
                    inventory: format!("treadle-{maps}/1.shuffle").into(),
                    mark: u64::from(maps) << 40,
                }),
                is_open: place % 3 < 2,
                ..Group::new(id, of(place))
            });
            Plan {
                shuffle,
                generation,
                opened: Generation(maps),
                is_final: false,
                tenant: Tenant {
                    application: ApplicationId(u64::from(maps) << 20),
                    priority: maps,
                },
                maps,
                partitions,
                groups: groups
                    .filter(|group| !group.partitions.is_empty())
                    .collect(),
            }
        })
        .boxed()
}

fn commit_error() -> BoxedStrategy<CommitError> {
    prop_oneof![
        shuffle().prop_map(CommitError::Again),
        shuffle().prop_map(CommitError::Ended),
        shuffle().prop_map(CommitError::Late),
        (shuffle(), group(), tally(), tally(), missing()).prop_map(
            |(shuffle, group, expected, found, missing)| CommitError::Damaged {
                shuffle,
                group,
                expected,
                found,
                missing,
            }
        ),
    ]
    .boxed()
}

pub(crate) fn to_node() -> BoxedStrategy<ToNode> {
    let result = prop_oneof![
        number().prop_map(|generation| Ok(Generation(generation))),
        commit_error().prop_map(Err),
    ];
    prop_oneof![
        plan().prop_map(|plan| ToNode::Plan(plan.into())),
        shuffle().prop_map(ToNode::Close),
        (shuffle(), number(), group(), number(), expected()).prop_map(
            |(shuffle, generation, group, round, expected)| ToNode::Seal(Seal {
                shuffle,
                generation: Generation(generation),
                group,
                round,
                expected,
            })
        ),
        (shuffle(), any::<u64>(), result).prop_map(|(shuffle, ask, result)| ToNode::Committed {
            shuffle,
            ask,
            result,
        }),
    ]
    .boxed()
}

fn commit() -> BoxedStrategy<Commit> {
    // Of each map two attempts, of which groups have either, or none.
    let winners = prop::collection::btree_set(number(), 0..6);
    let chosen = (prop::collection::vec(0..3_usize, 6), tally());
    let groups = prop::collection::btree_map(group(), chosen, 0..4);
    (shuffle(), winners, groups, any::<bool>())
        .prop_map(|(shuffle, maps, groups, keeps)| {
            let of_map = |map: u32| [3, 1 << 40].map(|attempt| (map, AttemptId(attempt)));
            let winners: Vec<_> = maps.into_iter().flat_map(of_map).collect();
            let groups = groups.into_iter().map(|(group, (picks, tally))| {
                let picks = (0..winners.len() / 2)
                    .zip(picks)
                    .filter(|(_, pick)| *pick < 2);
                let positions = picks.map(|(map, pick)| (2 * map + pick) as u32).collect();
                (group, Chosen { positions, tally })
            });
            Commit {
                shuffle,
                groups: groups.collect(),
                winners: winners.into(),
                keeps,
            }
        })
        .boxed()
}

fn verdict() -> BoxedStrategy<Verdict> {
    prop_oneof![
        Just(Verdict::Complete),
        Just(Verdict::Differs),
        (tally(), missing()).prop_map(|(found, missing)| Verdict::Short { found, missing }),
    ]
    .boxed()
}

pub(crate) fn to_master() -> BoxedStrategy<ToMaster> {
    prop_oneof![
        shuffle().prop_map(ToMaster::Join),
        (transfer(), groups(), tally()).prop_map(|(transfer, groups, tally)| {
            ToMaster::Transferred {
                transfer,
                groups,
                tally,
            }
        }),
        (any::<u64>(), commit()).prop_map(|(ask, commit)| ToMaster::Commit { ask, commit }),
        (shuffle(), group(), number(), verdict()).prop_map(|(shuffle, group, round, verdict)| {
            ToMaster::Sealed {
                shuffle,
                group,
                round,
                verdict,
            }
        }),
        (shuffle(), group(), missing()).prop_map(|(shuffle, group, map)| ToMaster::Differs {
            shuffle,
            group,
            map,
            is_late: map.is_none(),
        }),
        (shuffle(), group()).prop_map(|(shuffle, group)| ToMaster::Damaged { shuffle, group }),
        (shuffle(), group()).prop_map(|(shuffle, group)| ToMaster::Poisoned { shuffle, group }),
        (shuffle(), server(), any::<u32>()).prop_map(|(shuffle, server, times)| ToMaster::Slow {
            shuffle,
            server,
            times,
        }),
        (shuffle(), group(), group(), any::<bool>()).prop_map(
            |(shuffle, group, source, is_sealed)| ToMaster::Filled {
                shuffle,
                group,
                source,
                is_sealed,
            }
        ),
        (shuffle(), group(), any::<String>(), any::<u64>()).prop_map(
            |(shuffle, group, inventory, mark)| ToMaster::Uploaded {
                shuffle,
                group,
                uploaded: Uploaded {
                    inventory: inventory.into(),
                    mark,
                },
            }
        ),
    ]
    .boxed()
}

pub(crate) fn to_server() -> BoxedStrategy<ToServer> {
    let push = (shuffle(), group(), batch(), tally(), any::<u64>());
    let fetch = (any::<u64>(), shuffle(), number(), group(), number());
    let push = push.prop_map(|(shuffle, group, batch, tally, length)| Push {
        shuffle,
        group,
        batch,
        tally,
        length,
    });
    let push = push.boxed();
    prop_oneof![
        push.clone().prop_map(ToServer::Push),
        proptest::collection::vec(push, 0..4).prop_map(|pushes| ToServer::Pushes { pushes }),
        (group(), transfer(), tally()).prop_map(|(group, transfer, tally)| ToServer::Ask(Ask {
            group,
            transfer,
            tally,
        })),
        (group(), transfer()).prop_map(|(group, transfer)| ToServer::Abandon { group, transfer }),
        any::<u64>().prop_map(|read| ToServer::Cancel { read }),
        fetch.prop_map(
            |(read, shuffle, generation, group, partition)| ToServer::Fetch(Fetch {
                read,
                shuffle,
                generation: Generation(generation),
                group,
                partition,
                maps: (partition % 2 == 0).then_some(MapRange {
                    first: 1,
                    end: partition
                }),
                reader: (partition % 3 == 0).then_some(Tenant {
                    application: ApplicationId(read),
                    priority: partition,
                }),
            })
        ),
    ]
    .boxed()
}

fn refusal() -> BoxedStrategy<Refusal> {
    prop_oneof![
        server().prop_map(Refusal::Stranger),
        number().prop_map(|generation| Refusal::Stale(Generation(generation))),
        any::<String>().prop_map(|reason| Refusal::NoRoom(reason.into())),
        any::<u64>().prop_map(|micros| Refusal::Sleep(Duration::from_micros(micros))),
        prop::sample::select(vec![
            Refusal::Unknown,
            Refusal::Sealed,
            Refusal::Unsealed,
            Refusal::Busy,
            Refusal::Alone,
            Refusal::Malformed,
            Refusal::Damaged,
        ]),
    ]
    .boxed()
}

pub(crate) fn from_server() -> BoxedStrategy<FromServer> {
    let answer = prop_oneof![
        attempt().prop_map(Answer::Have),
        attempt().prop_map(Answer::Won),
        Just(Answer::Missing),
        Just(Answer::Differs),
        refusal().prop_map(Answer::Refused),
    ];
    let packed = prop_oneof![3 => Just(0), 1 => any::<u32>()];
    let piece = (batch(), any::<u64>(), any::<u64>(), any::<u32>(), packed).prop_map(
        |(batch, rows, bytes, digest, packed)| ReadPiece {
            batch,
            rows,
            bytes,
            digest,
            packed,
        },
    );
    prop_oneof![
        (shuffle(), group(), batch()).prop_map(|(shuffle, group, batch)| FromServer::Acked {
            shuffle,
            group,
            batch,
        }),
        (shuffle(), group(), batch(), refusal()).prop_map(|(shuffle, group, batch, reason)| {
            FromServer::Refused {
                shuffle,
                group,
                batch,
                reason,
            }
        }),
        (group(), transfer(), answer).prop_map(|(group, transfer, answer)| FromServer::Answer {
            group,
            transfer,
            answer,
        }),
        (any::<u64>(), tally(), prop::collection::vec(piece, 0..6)).prop_map(
            |(read, tally, pieces)| FromServer::Rows {
                read,
                tally,
                pieces,
            }
        ),
        (any::<u64>(), refusal()).prop_map(|(read, reason)| FromServer::Unread { read, reason }),
    ]
    .boxed()
}
