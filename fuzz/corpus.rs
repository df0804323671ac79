//! What the crates' tests do with the corpus of a target.

use std::path::{Path, PathBuf};

/// A target's folder in `fuzz/corpus` of the repository, in which the crate is somewhere.
fn folder(target: &str) -> PathBuf {
    let places = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut corpora = places.map(|place| place.join("fuzz/corpus"));
    let corpus = corpora.find(|corpus| corpus.is_dir());
    corpus.expect("it is in the repository").join(target)
}

/// Hands a target all that is kept for it.
pub fn replay(target: &str, run: impl Fn(&[u8])) {
    let files = std::fs::read_dir(folder(target)).expect("every target has a corpus");
    let mut replayed = 0;
    for file in files {
        run(&std::fs::read(file.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "{target}");
}

/// What is written today must be what was written when the corpus was made: change the version of
/// the format when this fails. `TREADLE_WRITE_SEEDS=1` writes it anew.
pub fn compare(target: &str, name: &str, bytes: &[u8]) {
    let path = folder(target).join(format!("seed-{name}"));
    if std::env::var_os("TREADLE_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(folder(target)).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert!(kept == bytes, "{path:?}");
}
