//! Several pushes in a message: who says them, and what is let in.

use treadle_shuffle::{
    Config, FromServer, Gathered, Generation, GroupId, Push, Refusal, ServerEffect, ServerEvent,
    ToNode, ToServer, Transfer, WriterEffect, WriterEvent,
};

use crate::server::holder;
use crate::support::{C, Head, Pusher, S, batch, count, spec, transfer};

fn of(map: u32) -> Transfer {
    transfer(map, 10 + u64::from(map))
}

/// The maps of the pushes in each message.
fn said(effects: &[WriterEffect]) -> Vec<Vec<u32>> {
    let said = effects.iter().filter_map(|effect| match effect {
        WriterEffect::Send {
            message: ToServer::Push(push),
            ..
        } => Some(vec![push.batch.map]),
        WriterEffect::Send {
            message: ToServer::Pushes { pushes },
            ..
        } => Some(pushes.iter().map(|push| push.batch.map).collect()),
        _ => None,
    });
    said.collect()
}

fn gathered(pusher: &mut Pusher, group: GroupId, maps: &[u32], length: u64) -> Vec<Vec<u32>> {
    let parts = maps.iter().map(|&map| {
        let batches = vec![(count(1, 1), length)];
        (of(map), group, Gathered { batches })
    });
    said(&pusher.event(WriterEvent::GatheredTogether(parts.collect())))
}

fn answered(
    pusher: &mut Pusher,
    group: GroupId,
    map: u32,
    reason: Option<Refusal>,
) -> Vec<Vec<u32>> {
    let (shuffle, batch) = (S, of(map).batch(0));
    let message = match reason {
        None => FromServer::Acked {
            shuffle,
            group,
            batch,
        },
        Some(reason) => FromServer::Refused {
            shuffle,
            group,
            batch,
            reason,
        },
    };
    let from = group.server;
    said(&pusher.event(WriterEvent::Server { from, message }))
}

#[test]
fn small_pushes_are_said_together_to_who_takes_that_until_it_wants_them_alone() {
    let plan = Head::new(1, spec(20, 4)).plan();
    let group = plan.groups[0].id;
    let mut pusher = Pusher::new(Config::default());
    for map in 0..20 {
        let transfer = of(map);
        pusher.event(WriterEvent::Begin {
            transfer,
            again: false,
            replaces: true,
        });
    }
    pusher.event(WriterEvent::Master(ToNode::Plan(plan)));
    let of_before = gathered(&mut pusher, group, &[0, 1], 100);
    assert_eq!(of_before, [[0], [1]], "it is of a release before");
    pusher.event(WriterEvent::TakesTogether(group.server));
    assert_eq!(gathered(&mut pusher, group, &[2, 3, 4], 100), [[2, 3, 4]]);
    let large = ToServer::TOGETHER / 2;
    let together = gathered(&mut pusher, group, &[5, 6, 7], large);
    assert_eq!(together, [vec![5, 6], vec![7]]);
    let larger = gathered(&mut pusher, group, &[8, 9], 2 * large + 1);
    assert_eq!(larger, [[8], [9]]);
    // One is taken, and the others are to come alone.
    assert_eq!(
        answered(&mut pusher, group, 2, None),
        Vec::<Vec<u32>>::new()
    );
    for map in [3, 4] {
        let again = answered(&mut pusher, group, map, Some(Refusal::Alone));
        assert_eq!(again, [[map]]);
    }
    assert_eq!(gathered(&mut pusher, group, &[10, 11], 100), [[10], [11]]);
    answered(&mut pusher, group, 3, None);
    assert_eq!(gathered(&mut pusher, group, &[12, 13], 100), [[12, 13]]);
}

/// What comes of pushes, by their maps: they are let in, or acknowledged, or refused.
fn come_of(effects: &[ServerEffect]) -> Vec<(u32, Result<bool, Refusal>)> {
    let come = effects.iter().filter_map(|effect| match effect {
        ServerEffect::Admit { push, .. } => Some((push.batch.map, Ok(true))),
        ServerEffect::Reply { message, .. } => match message {
            FromServer::Acked { batch, .. } => Some((batch.map, Ok(false))),
            FromServer::Refused { batch, reason, .. } => Some((batch.map, Err(reason.clone()))),
            _ => None,
        },
        _ => None,
    });
    come.collect()
}

#[test]
fn all_of_a_message_are_let_in_or_none_is_and_each_is_answered() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let pushed = |map| batch(of(map), group, 0, &[(1, 3)]);
    let said = |maps: &[u32]| {
        let pushes = maps.iter().map(|&map| pushed(map).0);
        let pushes: Vec<Push> = pushes.collect();
        ToServer::Pushes { pushes }
    };
    let first = holder.message(said(&[0, 1]));
    assert_eq!(come_of(&first), [(0, Ok(true)), (1, Ok(true))]);
    for (push, table) in [0, 1].map(pushed) {
        holder.arrive(push, Some(table));
    }
    let alone = || Err(Refusal::Alone);
    let again = holder.message(said(&[1, 2, 0]));
    assert_eq!(
        come_of(&again),
        [(1, Ok(false)), (2, alone()), (0, Ok(false))]
    );
    // Of an assignment before.
    let mut stale = pushed(2).0;
    stale.group.epoch = Generation(0);
    let pushes = vec![pushed(2).0, stale];
    let refused = holder.message(ToServer::Pushes { pushes });
    let reason = Refusal::Stale(plan.generation);
    assert_eq!(come_of(&refused), [(2, alone()), (2, Err(reason))]);
    // Room for one of two, or for both.
    let length = pushed(2).0.length;
    for (room, come) in [(2 * length - 1, alone()), (2 * length, Ok(true))] {
        let limit = holder.server.resident() + room;
        let target = limit;
        holder.event(ServerEvent::Budget { target, limit });
        let effects = holder.message(said(&[2, 3]));
        assert_eq!(come_of(&effects), [(2, come.clone()), (3, come)]);
    }
}

#[test]
fn who_waited_for_room_before_comes_in_before() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let pushed = |map| batch(of(map), group, 0, &[(1, 3)]).0;
    let length = pushed(0).length;
    let limit = 3 * length;
    let target = limit;
    holder.event(ServerEvent::Budget { target, limit });
    holder.message(ToServer::Push(pushed(0)));
    let large = Push {
        length: limit,
        ..pushed(1)
    };
    assert_eq!(come_of(&holder.message(ToServer::Push(large))), []);
    let pushes = vec![pushed(2), pushed(3)];
    let effects = holder.event(ServerEvent::Message {
        from: C,
        message: ToServer::Pushes { pushes },
    });
    let alone = || Err(Refusal::Alone);
    assert_eq!(come_of(&effects), [(2, alone()), (3, alone())]);
}
