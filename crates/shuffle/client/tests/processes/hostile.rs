//! A process that has the secret, and says what only others may say. Their applications notice nothing.

use bytes::Bytes;
use treadle_net::{Options, Peer};
use treadle_security::secret::Secret;
use treadle_shuffle::{
    ApplicationId, Generation, Group, GroupId, Plan, ServerId, ShuffleId, Tenant, ToMaster, ToNode,
};
use treadle_shuffle_service::{LINKS, SERVICE};
use treadle_shuffle_wire::encode_shuffled;
use treadle_types::Runs;

use crate::support::{Servers, compare, connect, register, soon, write_all};

/// Kinds of objects.
const HELLO: u32 = 32;
const TO_MASTER: u32 = 33;
const CALL: u32 = 34;
const DISMISSED: u32 = 36;
const WELCOME: u32 = 48;
const TO_NODE: u32 = 49;
const ANSWER: u32 = 52;
const GOVERN: u32 = 54;

const PROTOCOL: u64 = 2;
const OTHER: u64 = 99;

/// A field of a message.
enum Field {
    Number(u32, u64),
    Text(u32, &'static str),
}

fn message(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let varint = |mut value: u64| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    for field in fields {
        match *field {
            Field::Number(field, value) => {
                bytes.extend(varint(u64::from(field) << 3));
                bytes.extend(varint(value));
            }
            Field::Text(field, text) => {
                bytes.extend(varint(u64::from(field) << 3 | 2));
                bytes.extend(varint(text.len() as u64));
                bytes.extend(text.as_bytes());
            }
        }
    }
    bytes
}

fn dial(address: &str, service: u32) -> Peer {
    let options = Options {
        secret: Some(Secret::new("the secret of these tests").unwrap()),
        shared_memory: false,
        service,
        ..Options::default()
    };
    Peer::connect(&address.parse().unwrap(), &options, &mut soon()).unwrap()
}

fn say(peer: &Peer, kind: u32, bytes: Vec<u8>) {
    peer.send(kind, &[Bytes::from(bytes)]).unwrap();
}

/// Waits for an object of this kind.
fn hear(peer: &Peer, kind: u32) {
    loop {
        let object = peer.next(&mut soon()).unwrap();
        object.accept(Vec::new()).unwrap();
        object.wait(&mut soon()).unwrap();
        if object.take().unwrap().kind == kind {
            return;
        }
    }
}

/// A master that connects to a server, which it calls this.
fn govern(address: &str, me: ServerId) -> Peer {
    let peer = dial(address, LINKS);
    let govern = [
        Field::Text(1, "hostile"),
        Field::Number(3, PROTOCOL),
        Field::Number(4, PROTOCOL),
        Field::Number(5, OTHER),
    ];
    say(&peer, GOVERN, message(&govern));
    hear(&peer, HELLO);
    let welcome = [
        Field::Number(1, me.node.into()),
        Field::Number(3, PROTOCOL),
        Field::Number(4, 10_000),
        Field::Number(5, me.incarnation.into()),
        Field::Number(6, 60_000),
    ];
    say(&peer, WELCOME, message(&welcome));
    peer
}

fn plan(shuffle: u64, server: ServerId) -> ToNode {
    let epoch = Generation(1);
    let plan = Plan {
        shuffle: ShuffleId(shuffle),
        generation: epoch,
        opened: epoch,
        is_final: false,
        tenant: Tenant {
            application: ApplicationId(OTHER),
            priority: 1,
        },
        maps: 3,
        partitions: 4,
        groups: vec![Group::new(GroupId { epoch, server }, Runs::range(0, 4))],
    };
    ToNode::Plan(plan.into())
}

#[test]
fn who_says_the_number_of_another_master_is_refused() {
    let servers = Servers::new();
    let a = servers.start("a");
    let service = servers.connect();
    let shuffle = register(&service, 3, 4);
    let receipts = write_all(&shuffle);
    let me = ServerId {
        node: 1_000,
        incarnation: (shuffle.number() >> 32) as u32,
    };
    let peer = govern(&a.address, me);
    hear(&peer, DISMISSED);
    let generation = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, generation);
}

#[test]
fn nobody_begins_the_shuffles_of_another_master() {
    let servers = Servers::new();
    let a = servers.start("a");
    let service = servers.connect();
    let before = register(&service, 1, 4);
    let next = before.number() + 1;
    let me = ServerId {
        node: 1_000,
        incarnation: (next >> 32) as u32 ^ 1,
    };
    let peer = govern(&a.address, me);
    let own = u64::from(me.incarnation) << 32 | 1;
    for message in [
        plan(next, me),
        plan(own, me),
        // This one is answered.
        ToNode::Close(ShuffleId(own)),
    ] {
        say(&peer, TO_NODE, encode_shuffled(&message));
    }
    hear(&peer, TO_MASTER);
    let shuffle = register(&service, 3, 4);
    assert_eq!(shuffle.number(), next);
    let receipts = write_all(&shuffle);
    let generation = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, generation);
}

#[test]
fn another_application_commits_nothing_and_has_no_map_run_again() {
    let servers = Servers::new();
    let _a = servers.start("a");
    let service = servers.connect();
    let shuffle = register(&service, 3, 4);
    let receipts = write_all(&shuffle);
    // With other rows.
    let other = connect(&servers.master.address(), OTHER);
    let theirs = other.attach(shuffle.number(), &mut soon()).unwrap();
    let written = (0..3).map(|map| {
        let mut writer = theirs.writer(map);
        writer.write(0, b"other").unwrap();
        writer.finish(&mut soon())
    });
    let written: Result<Vec<_>, _> = written.collect();
    assert!(
        written
            .and_then(|all| theirs.commit(&all, &mut soon()))
            .is_err()
    );
    let generation = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, generation);
    // As a member of the victim's master.
    let peer = dial(&service.master(), SERVICE);
    let hello = [
        Field::Text(1, "hostile"),
        Field::Number(5, OTHER),
        Field::Number(7, 1),
        Field::Number(9, PROTOCOL),
        Field::Number(10, PROTOCOL),
    ];
    say(&peer, HELLO, message(&hello));
    hear(&peer, WELCOME);
    let number = ShuffleId(shuffle.number());
    let names = (1..4).flat_map(|epoch| (0..10).map(move |node| (epoch, node)));
    for (epoch, node) in names {
        let group = GroupId {
            epoch: Generation(epoch),
            server: ServerId {
                node,
                incarnation: (shuffle.number() >> 32) as u32,
            },
        };
        for message in [
            ToMaster::Damaged {
                shuffle: number,
                group,
            },
            ToMaster::Poisoned {
                shuffle: number,
                group,
            },
            ToMaster::Differs {
                shuffle: number,
                group,
                map: Some(0),
                is_late: false,
            },
        ] {
            say(&peer, TO_MASTER, encode_shuffled(&message));
        }
    }
    let call = [Field::Number(1, 1), Field::Number(6, 1)];
    say(&peer, CALL, message(&call));
    hear(&peer, ANSWER);
    assert_eq!(shuffle.lost(&mut soon()).unwrap(), [] as [u32; 0]);
    compare(&shuffle, generation);
}
