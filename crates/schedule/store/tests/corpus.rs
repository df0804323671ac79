//! Replays what fuzzing found for the decoder of spilled files (`fuzz/`).

#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;
#[path = "../../../../fuzz/spilled.rs"]
#[allow(unreachable_pub, reason = "it is a module of the fuzz target, too")]
mod spilled;

use bytes::Bytes;
use treadle_store::Frames;
use treadle_store::file::Image;

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("spilled", spilled::spilled);
}

#[test]
fn the_corpus_has_what_is_valid() {
    let part = |length: u8| Bytes::from((0..length).collect::<Vec<u8>>());
    let seeds = [
        ("none", Frames::new(0, Vec::new())),
        ("one", Frames::new(7, vec![part(9)])),
        (
            "some",
            Frames::new(7, vec![part(64), part(0), part(65), part(1)]),
        ),
    ];
    for (name, frames) in seeds {
        let bytes = Image::new(&frames).pieces().concat();
        corpus::compare("spilled", name, &bytes);
    }
}
