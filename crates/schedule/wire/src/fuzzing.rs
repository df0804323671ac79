//! What the fuzz targets call: any bytes, in each direction.

use bytes::Bytes;
use treadle_messages::{FromClient, FromWorker, ToClient, ToWorker};

use super::{
    Decoder, Encoder, Message, data as schema, decode_data, decode_hello, decode_welcome,
    encode_data, encode_hello, encode_welcome,
};

/// Takes a packet apart in every direction, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn packet(bytes: &[u8]) {
    direction::<ToWorker>(bytes);
    direction::<FromWorker>(bytes);
    direction::<ToClient>(bytes);
    direction::<FromClient>(bytes);
    if let Ok(hello) = decode_hello(bytes) {
        // Amounts of resources may be no numbers, which equal nothing.
        let again = decode_hello(&encode_hello(&hello)).expect("this side packed it");
        assert_eq!(format!("{again:?}"), format!("{hello:?}"));
    }
    if let Ok(welcome) = decode_welcome(bytes) {
        assert!(decode_welcome(&encode_welcome(&welcome)) == Ok(welcome));
    }
}

/// Takes the first frame of an object between workers, or of a client's, apart, and packs what it
/// held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn data(bytes: &[u8]) {
    fn again<M: prost::Message + Default + PartialEq>(bytes: &[u8]) {
        if let Ok(message) = decode_data::<M>(bytes) {
            assert!(decode_data::<M>(&encode_data(&message)) == Ok(message));
        }
    }
    again::<schema::Get>(bytes);
    again::<schema::Value>(bytes);
    again::<schema::NoValue>(bytes);
    again::<schema::Unserialisable>(bytes);
    again::<schema::Put>(bytes);
    again::<schema::Taken>(bytes);
}

fn direction<M: Message + std::fmt::Debug>(bytes: &[u8]) {
    let mut encoder = Encoder::default();
    let mut messages = Vec::new();
    for message in Decoder::<M>::new(Bytes::copy_from_slice(bytes)) {
        let Ok(message) = message else {
            break;
        };
        encoder.push(&message);
        messages.push(format!("{message:?}"));
    }
    let mut again = Vec::new();
    while let Some(packet) = encoder.take() {
        for message in Decoder::<M>::new(packet.into()) {
            again.push(format!("{:?}", message.expect("this side packed it")));
        }
    }
    // Long lists come in pieces.
    assert!(again == messages || again.len() > messages.len());
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treadle_messages::{Batch, Definition, Registration, Standing, TaskOptions};
    use treadle_shuffle_wire::fuzzing::seeds::{to_master, to_node};
    use treadle_types::{
        Assignment, Attempt, ClientId, Command, Input, ObjectId, Place, Priority, Report, Returned,
        Runs, TaskId, WorkerId,
    };

    use super::*;

    fn packed<M: Message>(messages: &[M]) -> Vec<u8> {
        let mut encoder = Encoder::default();
        for message in messages {
            encoder.push(message);
        }
        encoder.take().expect("something was pushed")
    }

    /// Something of each direction.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let mut seeds = Vec::from(direction_seeds());
        seeds.extend(shuffle_seeds());
        seeds
    }

    fn direction_seeds() -> [(&'static str, Vec<u8>); 4] {
        let object = |task| ObjectId::new(TaskId(task), Attempt(1));
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let input = |task, place| Input {
            object: object(task),
            nbytes: 28,
            place,
        };
        let places = [
            Place::Here,
            Place::Inline(bytes("value")),
            Place::At([WorkerId(3), WorkerId(5)].into_iter().collect()),
        ];
        let assign = Command::Assign(Assignment {
            object: object(7),
            priority: Priority {
                user: -1,
                submission: 2,
                rank: 300,
            },
            client: ClientId(4),
            recipe: bytes("recipe"),
            inputs: (1..)
                .zip(places)
                .map(|(task, place)| input(task, place))
                .collect(),
            keep: true,
            actor: false,
        });
        let definition = Definition {
            client: ClientId(4),
            number: 9,
            name: "inc".into(),
            pickle: bytes("pickle"),
        };
        let returned = |inline: Option<Bytes>| Returned {
            nbytes: 5000,
            kept: inline.is_none(),
            inline,
            class: bytes("numpy.ndarray"),
        };
        let finished = |task, value| Report::Finished {
            object: object(task),
            value,
            duration: std::time::Duration::from_micros(70),
        };
        let standing = |inline: Option<Bytes>| Standing::Finished {
            nbytes: 28,
            holder: inline.is_none().then_some(WorkerId(3)),
            inline,
            class: bytes("int"),
            object: object(7).to_u64(),
        };
        let notice = |id, standing| ToClient::Notice { id, standing };
        let batch = Batch {
            first: 5,
            keys: vec![bytes("key-5"), bytes("key-6")],
            tasks: vec![5, 6],
            offsets: vec![0, 0, 1],
            inputs: vec![5],
            readers: vec![1, 0],
            ranks: vec![0, 1],
            definition_offsets: vec![0, 1, 2],
            definitions: vec![9, 9],
            recipes: vec![bytes("recipe"), bytes("another")],
            options: vec![0, 1],
            option_sets: vec![
                TaskOptions::default(),
                TaskOptions {
                    retries: 2,
                    ..Default::default()
                },
            ],
            wanted: vec![6],
            ..Batch::default()
        };
        [
            (
                "to-worker",
                packed(&[
                    ToWorker::Define(definition.clone()),
                    ToWorker::Command(assign),
                    ToWorker::Command(Command::Release(object(6))),
                ]),
            ),
            (
                "from-worker",
                packed(&[
                    FromWorker::Report(finished(7, returned(None))),
                    FromWorker::Report(finished(8, returned(Some(bytes("value"))))),
                    FromWorker::Report(Report::Retracted(object(9))),
                ]),
            ),
            (
                "to-client",
                packed(&[
                    notice(1, standing(None)),
                    notice(2, standing(Some(bytes("value")))),
                    notice(3, Standing::Pending),
                ]),
            ),
            (
                "from-client",
                packed(&[
                    FromClient::Define(definition),
                    FromClient::Submit(batch),
                    FromClient::Release(vec![1, 2, 300]),
                ]),
            ),
        ]
    }

    /// Packets with messages of the shuffle plane, and a registration.
    fn shuffle_seeds() -> [(&'static str, Vec<u8>); 3] {
        let to_worker = to_node().map(|(_, message)| ToWorker::ToNode(message));
        let from_worker = to_master().map(|(_, message)| FromWorker::ToMaster(message));
        let registration = Registration {
            submission: 3,
            name: "shuffle-1".into(),
            barrier: 7,
            maps: 7,
            partitions: 10,
            outputs: Runs::range(2, 8),
            aligned: Some("shuffle-0".into()),
            spec: Bytes::from_static(b"spec"),
            readers: vec![8, 9],
            reads: vec![2, 3],
            kind: "shuffle".into(),
            service: Some("treadle://127.0.0.1:7790".into()),
        };
        [
            ("to-worker-shuffle", packed(&to_worker)),
            ("from-worker-shuffle", packed(&from_worker)),
            (
                "from-client-shuffle",
                packed(&[FromClient::Register(registration)]),
            ),
        ]
    }

    /// One of each kind.
    fn data_seeds() -> Vec<(&'static str, Vec<u8>)> {
        let (request, object, kind, worker) = (7, 1 << 32, 3, 5);
        let reason = "it is gone".to_owned();
        [
            (
                "get",
                encode_data(&schema::Get {
                    request,
                    worker,
                    object,
                }),
            ),
            ("value", encode_data(&schema::Value { request, kind })),
            (
                "no-value",
                encode_data(&schema::NoValue {
                    request,
                    reason: reason.clone(),
                }),
            ),
            (
                "unserialisable",
                encode_data(&schema::Unserialisable {
                    request,
                    error: reason.clone().into(),
                }),
            ),
            (
                "put",
                encode_data(&schema::Put {
                    object,
                    kind,
                    worker,
                }),
            ),
            (
                "taken",
                encode_data(&schema::Taken {
                    object,
                    refused: Some(reason),
                }),
            ),
        ]
        .map(|(name, bytes)| (name, bytes.to_vec()))
        .into()
    }

    kept!(packet, seeds);
    kept!(data, data_seeds);

    proptest! {
        /// A section of columns, with anything in them.
        #[test]
        fn any_columns(
            family in 1..5u8,
            columns in prop::collection::vec((1..24u8, prop::collection::vec(0..6u8, 0..8)), 0..12)
        ) {
            let mut section = Vec::new();
            for (field, column) in &columns {
                treadle_codec::head((*field).into(), column.len(), &mut section);
                section.extend_from_slice(column);
            }
            let mut inner = Vec::new();
            treadle_codec::head(family.into(), section.len(), &mut inner);
            inner.extend_from_slice(&section);
            let mut whole = Vec::new();
            treadle_codec::head(1, inner.len(), &mut whole);
            whole.extend_from_slice(&inner);
            packet(&whole);
        }
    }
}
