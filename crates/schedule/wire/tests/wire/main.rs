//! Messages survive the wire, and bytes that are no messages do no harm.

mod messages;
#[path = "../../../../shuffle/wire/tests/shuffled/strategies.rs"]
#[allow(dead_code, reason = "packets carry a part of these messages")]
mod shuffled;

use bytes::Bytes;
use proptest::prelude::*;
use treadle_messages::{
    Batch, FromClient, FromWorker, Hello, Registration, ToClient, ToWorker, Welcome,
};
use treadle_net::SMALL;
use treadle_schedule_wire::{
    Decoder, Encoder, Message, PROTOCOL, WireError, decode_hello, decode_welcome, encode_hello,
    encode_hello_of, encode_welcome,
};
use treadle_types::{Assignment, Attempt, ClientId, Command, ObjectId, Priority, TaskId};

use messages::{from_client, from_worker, hello, to_client, to_worker, welcome};

fn packets<M: Message>(messages: &[M]) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::default();
    for message in messages {
        encoder.push(message);
    }
    let packets = std::iter::from_fn(|| encoder.take()).collect();
    assert!(encoder.is_empty());
    assert_eq!(encoder.waiting(), 0);
    packets
}

fn decoded<M: Message>(packets: Vec<Vec<u8>>) -> Result<Vec<M>, WireError> {
    let packets = packets.into_iter();
    packets
        .flat_map(|packet| Decoder::new(packet.into()))
        .collect()
}

fn round_trip<M: Message + PartialEq + std::fmt::Debug>(messages: &[M]) {
    let packets = packets(messages);
    for packet in &packets {
        let small = (packet.len() as u64) < SMALL;
        let many = Decoder::<M>::new(packet.clone().into()).count() > 1;
        assert!(small || !many, "a large packet has one message");
    }
    assert_eq!(decoded::<M>(packets).unwrap(), messages);
}

/// Whether a packet that was cut gives an error, or a beginning of the messages where the cut is
/// between two sections.
fn cut<M: Message + PartialEq + std::fmt::Debug>(messages: &[M], at: prop::sample::Index) {
    for packet in packets(messages) {
        let whole: Vec<M> = decoded(vec![packet.clone()]).unwrap();
        let at = at.index(packet.len());
        let found: Vec<_> = Decoder::<M>::new(Bytes::copy_from_slice(&packet[..at])).collect();
        let good = found.iter().take_while(|message| message.is_ok()).count();
        for (found, expected) in found.iter().zip(&whole[..good]) {
            if let Ok(found) = found {
                assert_eq!(found, expected);
            }
        }
        if good == found.len() {
            assert!(good < whole.len(), "something was cut off");
        } else {
            assert_eq!(good + 1, found.len(), "an error is the last word");
        }
    }
}

/// Any bytes, and any change of good ones, give messages or an error.
fn harmless<M: Message>(bytes: &[u8]) {
    let found: Vec<_> = Decoder::<M>::new(Bytes::copy_from_slice(bytes)).collect();
    let errors = found.iter().filter(|message| message.is_err()).count();
    assert!(errors <= 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn to_workers(messages in prop::collection::vec(to_worker(), 0..30), at: prop::sample::Index) {
        round_trip(&messages);
        cut(&messages, at);
    }

    #[test]
    fn from_workers(messages in prop::collection::vec(from_worker(), 0..30), at: prop::sample::Index) {
        round_trip(&messages);
        cut(&messages, at);
    }

    #[test]
    fn to_clients(messages in prop::collection::vec(to_client(), 0..30), at: prop::sample::Index) {
        round_trip(&messages);
        cut(&messages, at);
    }

    #[test]
    fn from_clients(messages in prop::collection::vec(from_client(), 0..10), at: prop::sample::Index) {
        round_trip(&messages);
        cut(&messages, at);
    }

    #[test]
    fn first_words(hello in hello(), welcome in welcome()) {
        prop_assert_eq!(decode_hello(&encode_hello(&hello)).unwrap(), hello);
        prop_assert_eq!(decode_welcome(&encode_welcome(&welcome)).unwrap(), welcome);
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        harmless::<ToWorker>(&bytes);
        harmless::<FromWorker>(&bytes);
        harmless::<ToClient>(&bytes);
        harmless::<FromClient>(&bytes);
        let _ = decode_hello(&bytes);
        let _ = decode_welcome(&bytes);
    }

    #[test]
    fn changed_bytes(
        messages in prop::collection::vec(from_client(), 1..5),
        reports in prop::collection::vec(from_worker(), 1..10),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let change = |mut packet: Vec<u8>| {
            for (at, byte) in &changes {
                let at = at.index(packet.len());
                packet[at] = *byte;
            }
            packet
        };
        for packet in packets(&messages) {
            harmless::<FromClient>(&change(packet));
        }
        for packet in packets(&reports) {
            harmless::<FromWorker>(&change(packet));
        }
    }
}

fn assignment(task: u32, recipe: usize) -> ToWorker {
    ToWorker::Command(Command::Assign(Assignment {
        object: ObjectId::new(TaskId(task), Attempt(0)),
        priority: Priority::default(),
        client: ClientId(1),
        recipe: vec![7; recipe].into(),
        inputs: Vec::new().into(),
        keep: false,
        actor: false,
    }))
}

#[test]
fn many_tasks_fill_small_packets_and_a_large_one_travels_between_them() {
    let mut messages: Vec<_> = (0..5000).map(|task| assignment(task, 100)).collect();
    messages.insert(1234, assignment(9999, 1 << 20));
    let packets = packets(&messages);
    let large: Vec<_> = packets
        .iter()
        .filter(|packet| packet.len() as u64 >= SMALL)
        .collect();
    assert_eq!(large.len(), 1);
    assert!(packets.len() < 20, "{} packets", packets.len());
    assert_eq!(decoded::<ToWorker>(packets).unwrap(), messages);
}

#[test]
fn a_task_takes_few_bytes() {
    let messages: Vec<_> = (0..1000).map(|task| assignment(task, 0)).collect();
    let bytes: usize = packets(&messages).iter().map(Vec::len).sum();
    assert!(bytes < 12 * 1000, "{bytes}");
}

#[test]
fn long_lists_are_said_in_pieces() {
    let ids: Vec<u32> = (0..100_000).map(|id| id * 37 % 100_003).collect();
    let packets = packets(&[FromClient::Release(ids.clone())]);
    assert!(packets.iter().all(|packet| (packet.len() as u64) < SMALL));
    let mut found = Vec::new();
    for message in decoded::<FromClient>(packets).unwrap() {
        match message {
            FromClient::Release(ids) => found.extend(ids),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found, ids);

    let keys: Vec<Bytes> = (0..2000).map(|key| format!("key-{key}").into()).collect();
    let packets = self::packets(&[FromClient::Want {
        first: 10,
        keys: keys.clone(),
    }]);
    let mut next = 10;
    let mut found = Vec::new();
    for message in decoded::<FromClient>(packets).unwrap() {
        match message {
            FromClient::Want { first, keys } => {
                assert_eq!(first, next);
                next += keys.len() as u32;
                found.extend(keys);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found, keys);
}

#[test]
fn a_message_of_another_direction_is_refused_by_name() {
    let packet = packets(&[FromWorker::Drain]).remove(0);
    let error = decoded::<FromClient>(vec![packet]).unwrap_err();
    assert_eq!(error, WireError::Direction("Drain"));
}

#[test]
fn a_large_packet_of_many_messages_is_refused() {
    let one = packets(&[assignment(1, 10)]).remove(0);
    let packet = one.repeat(SMALL as usize / one.len() + 1);
    let error = decoded::<ToWorker>(vec![packet.clone()]).unwrap_err();
    assert_eq!(error, WireError::Crowded(packet.len()));
}

#[test]
fn columns_of_different_lengths_are_refused() {
    let mut batch = Batch {
        tasks: vec![1, 2],
        offsets: vec![0, 0, 0],
        readers: vec![0, 0],
        ranks: vec![0, 1],
        definition_offsets: vec![0, 0, 0],
        recipes: vec![Bytes::from("a"), Bytes::from("b")],
        options: vec![0, 0],
        ..Batch::default()
    };
    round_trip(&[FromClient::Submit(batch.clone())]);
    batch.readers.pop();
    let packet = packets(&[FromClient::Submit(batch.clone())]);
    assert_eq!(
        decoded::<FromClient>(packet).unwrap_err(),
        WireError::Short { column: "readers" }
    );
    batch.readers.extend([0, 0]);
    let packet = packets(&[FromClient::Submit(batch)]);
    assert_eq!(
        decoded::<FromClient>(packet).unwrap_err(),
        WireError::Surplus { column: "readers" }
    );
}

#[test]
fn another_protocol_is_refused_with_what_to_do() {
    let hello = Hello {
        role: treadle_messages::Role::Client,
        name: "c".into(),
        python: "3.11".into(),
        version: "0.1.0".into(),
        info: Bytes::new(),
    };
    let error = decode_hello(&encode_hello_of(PROTOCOL + 1, &hello)).unwrap_err();
    assert!(error.to_string().contains("install the same version"));
    assert!(matches!(
        decode_welcome(&encode_welcome(&Welcome::Refused("no".into()))),
        Ok(Welcome::Refused(reason)) if reason == "no"
    ));
}

#[test]
fn a_registration_that_does_not_say_what_its_readers_read_is_refused() {
    let of = |readers: Vec<u32>, reads: Vec<u32>| {
        let registration = Registration {
            readers,
            reads,
            ..Registration::default()
        };
        decoded::<FromClient>(packets(&[FromClient::Register(registration)])).map(drop)
    };
    assert_eq!(of(vec![3, 4], vec![0, 1]), Ok(()));
    let column = "reads";
    let refused = |error: Result<(), WireError>| error.unwrap_err().to_string();
    assert!(refused(of(vec![3, 4], vec![0])).contains(column));
    assert!(refused(of(vec![3], vec![0, 1])).contains(column));
}
