//! What the fuzz targets call: any bytes, in each direction.

use bytes::Bytes;
use treadle_messages::{FromClient, FromWorker, ToClient, ToWorker};

use super::{
    Decoder, Encoder, Message, Shuffled, data as schema, decode_chunk, decode_data, decode_hello,
    decode_neighbour, decode_relayed, decode_shuffled, decode_welcome, encode_data, encode_hello,
    encode_neighbour, encode_relayed, encode_shuffled, encode_welcome,
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

/// Takes the frame of a message between neighbours apart, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn relayed(bytes: &[u8]) {
    if let Ok((message, lengths)) = decode_relayed(bytes) {
        let packed = encode_relayed(&message, &lengths);
        let is_chunk = matches!(message, treadle_broadcast::Message::Chunk { .. });
        assert_eq!(decode_chunk(&packed).is_some(), is_chunk);
        assert!(decode_relayed(&packed) == Ok((message, lengths)));
    }
    if let Ok((who, meant)) = decode_neighbour(bytes) {
        assert!(decode_neighbour(&encode_neighbour(who, meant)) == Ok((who, meant)));
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

/// Takes a message of the shuffle plane apart, or a receipt, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn shuffled(bytes: &[u8]) {
    fn again<M: Shuffled + PartialEq>(bytes: &[u8]) {
        if let Ok(message) = decode_shuffled::<M>(bytes) {
            assert!(decode_shuffled::<M>(&encode_shuffled(&message)) == Ok(message));
        }
    }
    again::<treadle_shuffle::ToNode>(bytes);
    again::<treadle_shuffle::ToMaster>(bytes);
    again::<treadle_shuffle::ToServer>(bytes);
    again::<treadle_shuffle::FromServer>(bytes);
    again::<treadle_shuffle::Receipt>(bytes);
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
#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

#[cfg(test)]
#[path = "fuzzing/shuffled.rs"]
mod shuffled_seeds;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treadle_types::{
        Assignment, Attempt, ClientId, Command, Input, ObjectId, Place, Priority, Report, Returned,
        TaskId, WorkerId,
    };

    use super::*;
    use treadle_messages::{Batch, Definition, Standing, TaskOptions};

    pub(super) fn packed<M: Message>(messages: &[M]) -> Vec<u8> {
        let mut encoder = Encoder::default();
        for message in messages {
            encoder.push(message);
        }
        encoder.take().expect("something was pushed")
    }

    /// Something of each direction.
    fn seeds() -> [(&'static str, Vec<u8>); 4] {
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

    /// One of each kind, in the shortest form.
    fn relayed_seeds() -> Vec<(&'static str, Vec<u8>)> {
        use treadle_broadcast::{
            CastId, CastResult, Member, Message, Neighbour, Offer, Outcome, Output, Previous, Runs,
            Settled, Shape, Version,
        };
        let session = ClientId(4);
        let cast = CastId { session, number: 7 };
        let engines: Runs = [1, 2, 5].into_iter().collect();
        let offer = Offer {
            cast,
            members: engines.clone(),
            previous: Previous([(2, 6), (1, 0)].into_iter().collect()),
            size: 70_000,
            shape: Shape {
                degree: 3,
                local: 8,
                chunk: 1 << 18,
                chosen: true,
            },
            version: Version {
                count: 2,
                by: Some(WorkerId(9)),
            },
            fresh: true,
            unordered: true,
            mapped: false,
            aborted: false,
            settled: Settled([1, 2, 3].into_iter().collect()),
        };
        let result = |outcome| CastResult {
            number: 7,
            engines: Runs::range(1, 3),
            outcome,
        };
        let results = vec![
            result(Outcome::Finished { size: 12 }),
            result(Outcome::Finished { size: 0 }),
            result(Outcome::Refused("no room".into())),
            result(Outcome::Aborted),
        ];
        let output = Output {
            number: 7,
            engine: WorkerId(1),
            text: bytes::Bytes::from_static(b"text"),
        };
        let member = Member {
            worker: WorkerId(1),
            host: 77,
            address: "treadle://127.0.0.1:9".into(),
        };
        let lengths = [vec![12], vec![5, 0, 7]];
        let members = engines.clone();
        let offset = 1 << 20;
        let messages = [
            ("introduce", Message::Introduce(vec![member])),
            ("offer", Message::Offer(Box::new(offer))),
            (
                "chunk",
                Message::Chunk {
                    cast,
                    offset,
                    length: 1 << 18,
                },
            ),
            ("mapping", Message::Mapping { cast }),
            ("want", Message::Want { cast, offset }),
            ("have", Message::Have { cast, offset }),
            ("decline", Message::Decline { cast, members }),
            ("results", Message::Results { session, results }),
            (
                "outputs",
                Message::Outputs {
                    session,
                    outputs: vec![output],
                },
            ),
            (
                "settled",
                Message::Settled {
                    session,
                    settled: Settled(engines),
                },
            ),
            (
                "abort",
                Message::Abort {
                    cast,
                    interrupt: true,
                },
            ),
        ];
        let packed = messages.into_iter().map(|(name, message)| {
            let lengths = if name == "results" { &lengths[..] } else { &[] };
            let bytes = encode_relayed(&message, lengths);
            let again = decode_relayed(&bytes);
            assert_eq!(again, Ok((message, lengths.to_vec())));
            (name, bytes)
        });
        let mut all: Vec<_> = packed.collect();
        let greeting = encode_neighbour(Neighbour::Top(session), WorkerId(3));
        all.push(("neighbour", greeting));
        all
    }

    #[test]
    fn results_that_are_not_as_long_as_they_say_are_no_message() {
        let seeds = relayed_seeds();
        let (_, results) = seeds.iter().find(|(name, _)| *name == "results").unwrap();
        let (message, mut lengths) = decode_relayed(results).unwrap();
        for change in [
            |lengths: &mut Vec<Vec<u64>>| lengths[0][0] += 1,
            |lengths: &mut Vec<Vec<u64>>| lengths.truncate(1),
            |lengths: &mut Vec<Vec<u64>>| lengths.push(vec![1]),
        ] {
            let before = lengths.clone();
            change(&mut lengths);
            assert!(decode_relayed(&encode_relayed(&message, &lengths)).is_err());
            lengths = before;
        }
    }

    #[test]
    fn the_corpus_has_what_is_valid() {
        for (name, bytes) in seeds() {
            corpus::compare("packet", name, &bytes);
        }
        for (name, bytes) in shuffled_seeds::packets() {
            corpus::compare("packet", name, &bytes);
        }
        for (name, bytes) in relayed_seeds() {
            corpus::compare("relayed", name, &bytes);
        }
        for (name, bytes) in data_seeds() {
            corpus::compare("data", name, &bytes);
        }
        for (name, bytes) in shuffled_seeds::seeds() {
            corpus::compare("shuffled", name, &bytes);
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        corpus::replay("packet", packet);
        corpus::replay("relayed", relayed);
        corpus::replay("data", data);
        corpus::replay("shuffled", shuffled);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            packet(&bytes);
            relayed(&bytes);
            data(&bytes);
            shuffled(&bytes);
        }

        /// What is valid, with a few bytes changed, and cut.
        #[test]
        fn damaged_seeds(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            length in any::<prop::sample::Index>(),
        ) {
            let seeds = seeds().into_iter().chain(shuffled_seeds::packets()).map(|(_, bytes)| (packet as fn(&[u8]), bytes));
            let all = seeds
                .chain(relayed_seeds().into_iter().map(|(_, bytes)| (relayed as _, bytes)))
                .chain(data_seeds().into_iter().map(|(_, bytes)| (data as _, bytes)))
                .chain(shuffled_seeds::seeds().into_iter().map(|(_, bytes)| (shuffled as _, bytes)));
            for (target, mut bytes) in all {
                for (at, byte) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                target(&bytes);
                target(&bytes[..length.index(bytes.len())]);
            }
        }

        /// A section of columns, with anything in them.
        #[test]
        fn any_columns(
            family in 1..5u8,
            columns in prop::collection::vec((1..24u8, prop::collection::vec(0..6u8, 0..8)), 0..12)
        ) {
            let mut section = Vec::new();
            for (field, column) in &columns {
                crate::column::head((*field).into(), column.len(), &mut section);
                section.extend_from_slice(column);
            }
            let mut inner = Vec::new();
            crate::column::head(family.into(), section.len(), &mut inner);
            inner.extend_from_slice(&section);
            let mut whole = Vec::new();
            crate::column::head(1, inner.len(), &mut whole);
            whole.extend_from_slice(&inner);
            packet(&whole);
        }
    }
}
