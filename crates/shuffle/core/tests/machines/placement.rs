//! Servers with more and less room, and with none.

use std::collections::{BTreeMap, BTreeSet};

use treadle_shuffle::{Config, Intake, Master, MasterEvent, ShuffleId, Spec, Standing, ToMaster};

use crate::support::{Head, S, server_id, spec};

const OTHER: ShuffleId = ShuffleId(8);

fn weigh(head: &mut Head, node: u32, weight: u32) {
    stand(head, node, weight, 0);
}

/// A server takes so much in a second. 0: that is not known.
fn stand(head: &mut Head, node: u32, weight: u32, rate: u64) {
    let standing = Standing {
        domain: node,
        weight,
        intake: Intake { rate, age: 0 },
        store: 0,
    };
    head.event(MasterEvent::Standing {
        server: server_id(node),
        standing,
    });
}

/// Four servers of equal weight, and a shuffle with two copies of 240 partitions.
fn four() -> Head {
    let spec = Spec {
        copies: 2,
        ..spec(1, 240)
    };
    Head::new(4, spec)
}

/// How many partitions each server has copies of, of a shuffle that begins now.
fn begun(head: &mut Head) -> BTreeMap<u32, u64> {
    let spec = Spec {
        copies: 2,
        ..spec(1, 240)
    };
    let shuffle = OTHER;
    head.event(MasterEvent::End(S));
    head.event(MasterEvent::Register { shuffle, spec });
    head.take();
    head.hear(0, ToMaster::Join(shuffle));
    let plan = head.plan_of(shuffle);
    let mut counts = BTreeMap::new();
    for group in plan.iter().flat_map(|plan| &plan.groups) {
        for server in group.holders() {
            *counts.entry(server.node).or_default() += group.partitions.len();
        }
    }
    counts
}

#[test]
fn a_server_with_three_times_the_room_gets_three_times_as_much() {
    for large in 0..4 {
        let mut head = four();
        // About: others are never exactly equal.
        for node in 0..4 {
            let weight = if node == large { 30_001 } else { 10_003 - node };
            weigh(&mut head, node, weight);
        }
        let counts = begun(&mut head);
        for node in 0..4 {
            let expected = if node == large { 240 } else { 80 };
            assert!(counts[&node].abs_diff(expected) <= 2, "{large}: {counts:?}");
        }
    }
}

#[test]
fn what_is_placed_stays_when_rooms_change_and_no_plan_is_made_anew() {
    let mut head = four();
    let plan = head.plan();
    head.take();
    for (node, weight) in [
        (0, 30_000),
        (1, 2),
        (2, 0),
        (3, 0),
        (0, 0),
        (1, 0),
        (2, 7),
        (0, 1),
    ] {
        weigh(&mut head, node, weight);
        assert_eq!(head.take(), [], "{node} {weight}");
    }
    head.hear(1, ToMaster::Join(S));
    assert_eq!(head.plan(), plan);
}

#[test]
fn servers_that_are_to_be_avoided_get_partitions_if_there_are_no_others() {
    let begun = |avoided: &[u32], head: &mut Head| {
        let spec = Spec {
            copies: 2,
            ..spec(1, 240)
        };
        head.event(MasterEvent::Register {
            shuffle: OTHER,
            spec,
        });
        head.event(MasterEvent::Avoid {
            shuffle: OTHER,
            servers: avoided.iter().copied().map(server_id).collect(),
        });
        head.hear(0, ToMaster::Join(OTHER));
    };
    let used = |head: &Head| -> BTreeSet<u32> {
        let plan = head.plan_of(OTHER).unwrap();
        let holders = plan.groups.iter().flat_map(|group| group.holders());
        holders.map(|server| server.node).collect()
    };
    let mut head = four();
    begun(&[0, 3], &mut head);
    assert_eq!(used(&head), [1, 2].into());
    // Second copies are in another failure domain.
    head.event(MasterEvent::Lost(server_id(2)));
    let after = used(&head);
    assert!(after.contains(&1) && after.len() > 1, "{after:?}");
    let mut head = four();
    begun(&[0, 1, 2, 3], &mut head);
    assert_eq!(used(&head), [0, 1, 2, 3].into());
    // A shuffle that has ended is none any more.
    head.event(MasterEvent::End(OTHER));
    head.event(MasterEvent::Avoid {
        shuffle: OTHER,
        servers: [server_id(0)].into(),
    });
}

#[test]
fn a_server_without_room_gets_nothing_until_it_has_some() {
    let mut head = four();
    weigh(&mut head, 2, 0);
    assert_eq!(begun(&mut head), [(0, 160), (1, 160), (3, 160)].into());
    let mut head = four();
    weigh(&mut head, 2, 0);
    weigh(&mut head, 2, 1);
    assert_eq!(begun(&mut head).len(), 4);
}

#[test]
fn without_room_anywhere_a_shuffle_waits_for_some() {
    let mut head = four();
    (0..4).for_each(|node| weigh(&mut head, node, 0));
    assert_eq!(begun(&mut head), BTreeMap::new());
    weigh(&mut head, 3, 5);
    let plan = head.plan_of(OTHER).expect("there is a place");
    assert_eq!(plan.groups[0].copies, [server_id(3)]);
    // One that has a second place has it.
    weigh(&mut head, 1, 5);
    let plan = head.plan_of(OTHER).expect("there is a place");
    let open = plan.groups.iter().filter(|group| group.is_open);
    assert!(open.clone().count() == 1 && open.clone().all(|group| group.copies.len() == 2));
}

/// The servers of the open groups, and whether each has two copies.
fn open(head: &mut Head) -> BTreeSet<u32> {
    let plan = head.plan_of(S).unwrap();
    let open = plan.groups.iter().filter(|group| group.is_open);
    let open: Vec<_> = open.collect();
    let partitions: u64 = open.iter().map(|group| group.partitions.len()).sum();
    assert_eq!(partitions, 240, "each partition is in one open group");
    assert!(open.iter().all(|group| group.copies.len() == 2));
    open.iter()
        .flat_map(|group| group.copies.iter().map(|server| server.node))
        .collect()
}

/// A writer says that a server takes so many times as long as others.
fn slow(head: &mut Head, node: u32, times: u32) {
    let (shuffle, server) = (S, server_id(node));
    let message = ToMaster::Slow {
        shuffle,
        server,
        times,
    };
    head.hear(0, message);
}

#[test]
fn a_server_that_falls_behind_gets_no_more_rows_as_long_as_there_are_others() {
    let mut head = four();
    head.hear(0, ToMaster::Join(S));
    assert_eq!(open(&mut head), [0, 1, 2, 3].into());
    let before = head.plan_of(S).unwrap();
    slow(&mut head, 3, 4);
    assert_eq!(open(&mut head), [0, 1, 2].into());
    let after = head.plan_of(S).unwrap();
    // What it has stays, and is read.
    for group in &before.groups {
        let kept = after.group(group.id).unwrap();
        assert_eq!(kept.copies, group.copies);
        let is_at_it = group.copies.contains(&server_id(3));
        assert_eq!(kept.is_open, !is_at_it);
    }
    slow(&mut head, 2, 4);
    assert_eq!(open(&mut head), [0, 1].into());
    // Two copies are more than speed.
    let before = head.plan_of(S).unwrap();
    slow(&mut head, 1, 4);
    assert_eq!(head.plan_of(S).unwrap(), before);
    head.event(MasterEvent::Lost(server_id(0)));
    assert!(open(&mut head).contains(&1));
}

/// Two servers of each of these rates.
const KINDS: [u64; 8] = [1_000, 500, 250, 100, 1_000, 500, 250, 100];

/// What a shuffle reaches of the sum of what the servers take, as it is placed, in percent.
fn reached(counts: &BTreeMap<u32, u64>, rates: &[u64]) -> u64 {
    let times = rates.iter().enumerate().map(|(node, rate)| {
        let count = counts.get(&(node as u32)).copied().unwrap_or_default();
        count * 1_000_000 / rate
    });
    let all: u64 = counts.values().sum();
    all * 100_000_000 / (times.max().unwrap() * rates.iter().sum::<u64>())
}

#[test]
fn four_kinds_of_servers_have_rows_as_they_take_them() {
    for (shift, times) in [(0, 1), (1, 1), (3, 1 << 20), (6, 1 << 20)] {
        let mut rates = KINDS;
        rates.rotate_left(shift);
        let head = || {
            let spec = Spec {
                copies: 2,
                ..spec(1, 240)
            };
            Head::new(8, spec)
        };
        let mut known = head();
        for (node, rate) in (0..).zip(rates) {
            stand(&mut known, node, 1_000 + node, rate * times);
        }
        let counts = begun(&mut known);
        assert!(reached(&counts, &rates) >= 90, "{counts:?}");
        // They would be alike otherwise.
        let counts = begun(&mut head());
        assert!(reached(&counts, &rates) <= 30, "{counts:?}");
    }
}

/// Begins the shuffle once more, now that the rates are known.
fn begin_again(head: &mut Head) {
    head.event(MasterEvent::End(S));
    let spec = Spec {
        copies: 2,
        ..spec(1, 240)
    };
    let shuffle = S;
    head.event(MasterEvent::Register { shuffle, spec });
    head.hear(0, ToMaster::Join(S));
}

#[test]
fn a_server_that_has_its_share_keeps_its_groups_when_it_is_slow_and_loses_them_when_it_is_slower() {
    let mut head = four();
    for (node, rate) in (0..).zip([1_000, 1_000, 1_000, 300]) {
        stand(&mut head, node, 1_000, rate);
    }
    begin_again(&mut head);
    assert_eq!(open(&mut head), [0, 1, 2, 3].into());
    slow(&mut head, 3, 4);
    assert_eq!(open(&mut head), [0, 1, 2, 3].into());
    // One that became slow since has more than its share.
    slow(&mut head, 2, 4);
    assert_eq!(open(&mut head), [0, 1, 3].into());
    stand(&mut head, 3, 1_000, 60);
    slow(&mut head, 3, 4);
    assert_eq!(open(&mut head), [0, 1].into());
}

#[test]
fn a_server_with_a_low_share_that_stops_or_is_suddenly_much_slower_is_avoided_as_any_other() {
    for (rate, may) in [(1_000, 0), (300, 10), (100, 30)] {
        // A server that is stopped measures nothing: its rate stays what it was.
        let mut head = four();
        for (node, rate) in (0..).zip([1_000, 1_000, 1_000, rate]) {
            stand(&mut head, node, 1_000, rate);
        }
        begin_again(&mut head);
        if may > 0 {
            slow(&mut head, 3, may);
        }
        assert_eq!(open(&mut head), [0, 1, 2, 3].into(), "{rate}");
        slow(&mut head, 3, 100);
        assert_eq!(open(&mut head), [0, 1, 2].into(), "{rate}");
    }
}

#[test]
fn a_server_that_becomes_fast_again_and_one_that_joins_have_their_share() {
    let mut head = four();
    for (node, rate) in (0..).zip([1_000, 900, 1_100, 100]) {
        stand(&mut head, node, 1_000, rate);
    }
    let slow = begun(&mut head)[&3];
    assert!(slow <= 24, "{slow}");
    stand(&mut head, 3, 1_000, 950);
    let again = |head: &mut Head| {
        head.event(MasterEvent::End(OTHER));
        begun(head)
    };
    assert!(
        again(&mut head)
            .values()
            .all(|count| count.abs_diff(120) <= 2)
    );
    // It is not known, and begins in the middle.
    stand(&mut head, 4, 1_000, 0);
    assert!(
        again(&mut head)
            .values()
            .all(|count| count.abs_diff(96) <= 2)
    );
}

/// The servers of a shuffle that begins beside others, and is expected to have so many MiB.
fn begun_with(head: &mut Head, shuffle: u64, expected: u64) -> BTreeSet<u32> {
    let (shuffle, spec) = (
        ShuffleId(shuffle),
        Spec {
            copies: 2,
            expected: expected << 20,
            ..spec(1, 240)
        },
    );
    head.event(MasterEvent::Register { shuffle, spec });
    head.hear(0, ToMaster::Join(shuffle));
    let plan = head.plan_of(shuffle).unwrap();
    let holders = plan.groups.iter().flat_map(|group| &group.copies);
    holders.map(|server| server.node).collect()
}

fn eight() -> Head {
    let spec = Spec {
        copies: 2,
        ..spec(1, 240)
    };
    let mut head = Head::new(8, spec);
    head.event(MasterEvent::End(S));
    head
}

#[test]
fn a_small_shuffle_is_at_few_servers_and_large_ones_are_not_at_the_same() {
    let mut head = eight();
    assert_eq!(begun_with(&mut head, 20, 0).len(), 8, "nothing is known");
    head.event(MasterEvent::End(ShuffleId(20)));
    let large = begun_with(&mut head, 21, 128);
    let other = begun_with(&mut head, 22, 128);
    assert_eq!((large.len(), other.len()), (4, 4));
    assert!(large.is_disjoint(&other), "{large:?} {other:?}");
    assert_eq!(begun_with(&mut head, 23, 4_000).len(), 8);
    // Small ones are not all at the same two.
    let mut used = BTreeSet::new();
    for shuffle in 30..40 {
        let small = begun_with(&mut head, shuffle, 1);
        assert_eq!(small.len(), 2, "each row has two copies");
        used.extend(small);
    }
    assert!(used.len() > 4, "{used:?}");
}

#[test]
fn a_small_shuffle_is_at_the_servers_that_are_preferred() {
    for node in 0..8 {
        let mut head = eight();
        let (shuffle, spec) = (
            OTHER,
            Spec {
                copies: 1,
                expected: 1,
                preferred: [server_id(node)].into(),
                ..spec(1, 240)
            },
        );
        head.event(MasterEvent::Register { shuffle, spec });
        head.hear(0, ToMaster::Join(shuffle));
        let plan = head.plan_of(shuffle).unwrap();
        let at = plan.groups.iter().flat_map(|group| &group.copies);
        assert!(at.clone().count() > 0);
        assert!(at.clone().all(|&server| server == server_id(node)));
    }
}

#[test]
fn a_shuffle_that_was_to_be_small_goes_on_elsewhere_when_its_servers_are_lost() {
    let mut head = eight();
    let small = begun_with(&mut head, 20, 1);
    for &node in &small {
        head.event(MasterEvent::Lost(server_id(node)));
    }
    let plan = head.plan_of(ShuffleId(20)).unwrap();
    let open = plan.groups.iter().filter(|group| group.is_open);
    for group in open {
        assert_eq!(group.copies.len(), 2);
        assert!(group.copies.iter().all(|copy| !small.contains(&copy.node)));
    }
}

#[test]
fn masters_that_do_not_know_of_each_other_begin_small_shuffles_at_different_servers() {
    let mut counts = [0; 8];
    for at in 0..160 {
        let mut master = Master::beginning(Config::default(), at);
        let mut effects = Vec::new();
        for node in 0..8 {
            let standing = Standing {
                domain: node,
                weight: if node == 0 { 3_000 } else { 1_000 },
                intake: Intake::default(),
                store: 0,
            };
            let server = server_id(node);
            let event = MasterEvent::Standing { server, standing };
            master.handle(event, &mut effects).unwrap();
        }
        let spec = Spec {
            copies: 2,
            expected: 1,
            ..spec(1, 8)
        };
        let shuffle = S;
        let register = MasterEvent::Register { shuffle, spec };
        master.handle(register, &mut effects).unwrap();
        let (from, message) = (server_id(0), ToMaster::Join(S));
        let join = MasterEvent::Message { from, message };
        master.handle(join, &mut effects).unwrap();
        for node in 0..8 {
            let is_at = (0..8).any(|p| master.home(S, p) == Some(server_id(node)));
            counts[node as usize] += u32::from(is_at);
        }
    }
    // It has three times the weight of each of the others.
    assert!(counts[0] > *counts[1..].iter().max().unwrap(), "{counts:?}");
    assert!(counts.iter().all(|&count| count >= 8), "{counts:?}");
}

/// How many groups are looked at to know what servers have, for each of four events that are about all shuffles.
fn looked_at(shuffles: u64) -> [u64; 4] {
    let spec = Spec {
        copies: 2,
        ..spec(1, 24)
    };
    let mut head = Head::new(6, spec.clone());
    for shuffle in (0..shuffles).map(|at| ShuffleId(100 + at)) {
        let spec = spec.clone();
        head.event(MasterEvent::Register { shuffle, spec });
        head.hear(0, ToMaster::Join(shuffle));
    }
    weigh(&mut head, 1, 0);
    let events = [
        MasterEvent::Lost(server_id(5)),
        MasterEvent::Joined(server_id(9)),
        MasterEvent::Draining(server_id(4)),
        MasterEvent::Standing {
            server: server_id(1),
            standing: Standing {
                domain: 1,
                weight: 7,
                intake: Intake::default(),
                store: 0,
            },
        },
    ];
    events.map(|event| {
        let before = head.master.counted();
        head.event(event);
        head.master.counted() - before
    })
}

#[test]
fn what_is_about_all_shuffles_looks_at_each_group_a_few_times() {
    let (few, many) = (looked_at(20), looked_at(80));
    for (few, many) in few.into_iter().zip(many) {
        assert!(few > 20 && many < 5 * few, "{few} {many}");
    }
}
