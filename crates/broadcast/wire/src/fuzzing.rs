//! What the fuzz target calls: any bytes as a message between neighbours.

use crate::{decode_chunk, decode_neighbour, decode_relayed, encode_neighbour, encode_relayed};

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

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use treadle_broadcast::{
        CastId, CastResult, Member, Message, Neighbour, Offer, Outcome, Output, Previous, Runs,
        Settled, Shape, Version,
    };
    use treadle_types::{ClientId, WorkerId};

    use super::*;

    /// One of each kind, in the shortest form.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
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
            text: Bytes::from_static(b"text"),
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
        let seeds = seeds();
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

    kept!(relayed, seeds);
}
