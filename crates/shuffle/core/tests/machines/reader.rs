//! Which rows are returned, and which errors.

use std::sync::Arc;
use std::time::Duration;

use treadle_shuffle::{
    Config, FromServer, Generation, MasterEvent, Plan, ReadError, ReadPiece, Reader, ReaderEffect,
    ReaderEvent, Refusal, ServerId, Spec, Tally, Tenant, ToMaster, ToNode, ToServer,
};

use crate::support::{Head, S, server_id, spec, transfer};

struct Getter {
    reader: Reader,
    now: Duration,
}

impl Getter {
    /// With a read of partition 1 that was asked for.
    fn new(plan: &Arc<Plan>) -> Self {
        let mut getter = Self {
            reader: Reader::new(Tenant::default(), Config::default()),
            now: Duration::ZERO,
        };
        let effects = getter.begin(1, 1);
        assert_eq!(effects, [ReaderEffect::Report(ToMaster::Join(S))]);
        let effects = getter.event(ReaderEvent::Master(ToNode::Plan(plan.clone())));
        assert!(matches!(
            effects[..],
            [ReaderEffect::Send {
                message: ToServer::Fetch(_),
                ..
            }]
        ));
        getter
    }

    fn begin(&mut self, generation: u32, partition: u32) -> Vec<ReaderEffect> {
        self.event(ReaderEvent::Begin {
            read: 5,
            shuffle: S,
            generation: Generation(generation),
            partition,
            maps: None,
        })
    }

    fn event(&mut self, event: ReaderEvent) -> Vec<ReaderEffect> {
        let mut effects = Vec::new();
        let result = self.reader.handle(event, self.now, &mut effects);
        result.expect("the event can be");
        self.reader.check().expect("the invariants hold");
        effects
    }

    fn rows(&mut self, maps: &[u32], lost: u64, flipped: u32) -> Vec<ReaderEffect> {
        let pieces = maps.iter().map(|&map| ReadPiece {
            batch: transfer(map, 10).batch(0),
            rows: 2,
            bytes: 16,
            digest: 7,
            packed: 0,
        });
        let pieces: Vec<ReadPiece> = pieces.collect();
        let mut tally: Tally = pieces.iter().map(ReadPiece::tally).sum();
        tally.rows += lost;
        let message = FromServer::Rows {
            read: 5,
            tally,
            pieces,
        };
        self.event(ReaderEvent::Server {
            from: server_id(0),
            message,
            computed: maps.iter().map(|_| 7 ^ flipped).collect(),
        })
    }

    fn wait(&mut self) -> Vec<ReaderEffect> {
        self.now = self.reader.next_deadline().expect("it waits");
        self.event(ReaderEvent::Tick)
    }
}

fn error(effects: &[ReaderEffect]) -> Option<ReadError> {
    effects.iter().find_map(|effect| match effect {
        ReaderEffect::Failed { error, .. } => Some(error.clone()),
        _ => None,
    })
}

#[test]
fn who_is_told_to_pause_asks_again_after_that() {
    let plan = Head::new(1, spec(3, 4)).plan();
    let mut getter = Getter::new(&plan);
    let pause = Duration::from_secs(2);
    let unread = FromServer::Unread {
        read: 5,
        reason: Refusal::Sleep(pause),
    };
    let effects = getter.event(ReaderEvent::Server {
        from: server_id(0),
        message: unread,
        computed: Vec::new(),
    });
    assert_eq!(effects, []);
    let effects = getter.wait();
    assert_eq!(getter.now, pause);
    assert!(matches!(
        effects[..],
        [ReaderEffect::Send {
            message: ToServer::Fetch(_),
            ..
        }]
    ));
}

#[test]
fn rows_are_returned_if_they_are_all_as_they_were_and_in_order() {
    let plan = Head::new(1, spec(3, 4)).plan();
    let effects = Getter::new(&plan).rows(&[0, 2], 0, 0);
    assert!(matches!(effects[..], [ReaderEffect::Return { tally, .. }] if tally.rows == 4));
    let wrong = [
        (&[0, 2], 1, 0),
        (&[2, 0], 0, 0),
        (&[0, 0], 0, 0),
        (&[0, 2], 0, 1),
    ];
    for (maps, lost, flipped) in wrong {
        let mut getter = Getter::new(&plan);
        let effects = getter.rows(maps, lost, flipped);
        let group = plan.groups[0].id;
        let damaged = ToMaster::Damaged { shuffle: S, group };
        assert_eq!(
            effects,
            [ReaderEffect::Report(damaged)],
            "{maps:?} {lost} {flipped}"
        );
        // Nobody makes them again.
        let missing = ReadError::Missing {
            shuffle: S,
            partition: 1,
            server: server_id(0),
            reason: Refusal::Damaged,
        };
        assert_eq!(error(&getter.wait()), Some(missing));
        assert!(getter.reader.is_empty());
    }
}

#[test]
fn a_later_generation_gives_the_task_back() {
    let mut head = Head::new(2, spec(3, 4));
    let plan = head.plan();
    let mut getter = Getter::new(&plan);
    head.event(MasterEvent::Lost(server_id(1)));
    let effects = getter.event(ReaderEvent::Master(ToNode::Plan(head.plan())));
    assert_eq!(error(&effects), Some(ReadError::Superseded(S)));
    // A barrier that is ahead of the plan is waited for.
    assert_eq!(getter.begin(3, 1), []);
    assert_eq!(error(&getter.wait()), Some(ReadError::Superseded(S)));
}

#[test]
fn what_was_dropped_or_has_ended_is_named() {
    let plan = Head::new(1, spec(3, 4)).plan();
    let mut getter = Getter::new(&plan);
    let effects = getter.event(ReaderEvent::Master(ToNode::Close(S)));
    assert_eq!(error(&effects), Some(ReadError::Ended(S)));
    getter.event(ReaderEvent::Master(ToNode::Plan(plan)));
    let effects = getter.begin(1, 4);
    let (shuffle, partition) = (S, 4);
    let dropped = ReadError::NotAnOutput { shuffle, partition };
    assert_eq!(error(&effects), Some(dropped));
}

#[test]
fn a_server_that_cannot_be_reached_is_tried_again_and_named() {
    let plan = Head::new(1, spec(3, 4)).plan();
    let mut getter = Getter::new(&plan);
    for _ in 0..10_000 {
        getter.event(ReaderEvent::Disconnected(server_id(0)));
        let effects = getter.wait();
        if let Some(error) = error(&effects) {
            let unreachable = ReadError::Unreachable {
                shuffle: S,
                partition: 1,
                server: server_id(0),
            };
            return assert_eq!(error, unreachable);
        }
        assert!(matches!(effects[..], [ReaderEffect::Send { .. }]));
    }
    panic!("it goes on for ever");
}

/// A reader that has asked one of two servers, with the number of the fetch.
fn hedging() -> (Getter, ServerId, u64) {
    let spec = Spec {
        copies: 2,
        ..spec(3, 1)
    };
    let plan = Head::new(2, spec).plan();
    let mut getter = Getter {
        reader: Reader::new(Tenant::default(), Config::default()),
        now: Duration::ZERO,
    };
    getter.begin(plan.generation.0, 0);
    let effects = getter.event(ReaderEvent::Master(ToNode::Plan(plan)));
    let (server, read) = fetched(&effects).expect("it asks a server");
    (getter, server, read)
}

/// Whom the last of these asks for rows, and with which number.
fn fetched(effects: &[ReaderEffect]) -> Option<(ServerId, u64)> {
    match effects.last() {
        Some(ReaderEffect::Send {
            to,
            message: ToServer::Fetch(fetch),
        }) => Some((*to, fetch.read)),
        _ => None,
    }
}

fn cancelled(to: ServerId, read: u64) -> ReaderEffect {
    let message = ToServer::Cancel { read };
    ReaderEffect::Send { to, message }
}

#[test]
fn another_copy_is_read_when_a_server_is_silent_and_not_while_bytes_come() {
    let (mut getter, server, read) = hedging();
    let hedge = Config::default().hedge;
    for _ in 0..5 {
        getter.now += hedge * 9 / 10;
        getter.event(ReaderEvent::Heard(server));
        assert_eq!(getter.event(ReaderEvent::Tick), []);
    }
    // Bytes of another server say nothing of this one.
    getter.now += hedge;
    let other = server_id(1 - server.node);
    getter.event(ReaderEvent::Heard(other));
    let effects = getter.event(ReaderEvent::Tick);
    assert_eq!(effects[0], cancelled(server, read));
    let (next, number) = fetched(&effects).expect("it asks the other one");
    assert_eq!(next, other);
    assert_ne!(number, read);
}

#[test]
fn a_read_that_is_not_wanted_any_more_is_cancelled_at_its_server() {
    let (mut getter, server, read) = hedging();
    let effects = getter.event(ReaderEvent::Cancel(5));
    assert_eq!(effects, [cancelled(server, read)]);
    assert!(getter.reader.is_empty());
    // One that waits for nobody's answer needs no word.
    let (mut getter, server, read) = hedging();
    let pause = Duration::from_secs(1);
    let reason = Refusal::Sleep(pause);
    getter.event(ReaderEvent::Server {
        from: server,
        message: FromServer::Unread { read, reason },
        computed: Vec::new(),
    });
    assert_eq!(getter.event(ReaderEvent::Cancel(5)), []);
}
