//! Replays what fuzzing found for the decoder of spilled files (`fuzz/`).

#[path = "../../../fuzz/spilled.rs"]
#[allow(unreachable_pub, reason = "it is a module of the fuzz target, too")]
mod spilled;

use std::path::PathBuf;

use bytes::Bytes;
use treadle_store::Frames;
use treadle_store::file::Image;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/spilled")
}

#[test]
fn the_corpus_is_replayed() {
    let mut replayed = 0;
    for file in std::fs::read_dir(corpus()).expect("the corpus is there") {
        spilled::spilled(&std::fs::read(file.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0);
}

/// What is written today is what was written when the corpus was made: change the version of the
/// format when this fails. `TREADLE_WRITE_SEEDS=1` writes them anew.
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
        let path = corpus().join(format!("seed-{name}"));
        if std::env::var_os("TREADLE_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(corpus()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(kept == bytes, "{path:?}");
    }
}
