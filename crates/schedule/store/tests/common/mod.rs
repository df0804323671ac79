//! What the tests of the store share.
#![allow(dead_code, unreachable_pub)]

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_store::{Form, Frames, Live, Options, Store, StoredId};
use treadle_volume::faults::FaultyDisk;

/// Longer than anything here takes, also on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);
pub const NOW: Duration = Duration::ZERO;
pub const KIND: u32 = 17;

pub fn id(id: u64) -> StoredId {
    StoredId(id)
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn bytes(seed: u64, length: usize) -> Bytes {
    (0..length as u64)
        .map(|i| (i.wrapping_mul(31).wrapping_add(seed) >> 2) as u8)
        .collect()
}

/// How often something happened to the values of a test.
#[derive(Default, Debug)]
pub struct Seen {
    pub serialised: AtomicU64,
    pub dropped: AtomicU64,
    /// Asked for its statistics at every chance, which needs the store's lock.
    pub store: OnceLock<Weak<Store>>,
}

impl Seen {
    fn ask(&self) {
        if let Some(store) = self.store.get().and_then(Weak::upgrade) {
            store.stats();
        }
    }
}

pub enum Fails {
    No,
    Error,
    Panic,
}

/// A live object: its bytes, which its frames view.
pub struct Value {
    pub bytes: Bytes,
    pub fails: Fails,
    pub seen: Arc<Seen>,
}

impl Value {
    pub fn form(seed: u64, length: usize, seen: &Arc<Seen>) -> Form {
        Form::Live(Value::failing(seed, length, seen, Fails::No))
    }

    pub fn failing(seed: u64, length: usize, seen: &Arc<Seen>, fails: Fails) -> Arc<dyn Live> {
        Arc::new(Value {
            bytes: bytes(seed, length),
            fails,
            seen: Arc::clone(seen),
        })
    }
}

impl Live for Value {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn nbytes(&self) -> u64 {
        self.seen.ask();
        self.bytes.len() as u64
    }

    fn frames(&self) -> Result<Frames, Box<dyn Error + Send + Sync>> {
        self.seen.ask();
        self.seen.serialised.fetch_add(1, Ordering::SeqCst);
        match self.fails {
            Fails::No => Ok(Frames::new(KIND, vec![self.bytes.clone()]).viewing_live(0)),
            Fails::Error => Err("a lambda".into()),
            Fails::Panic => panic!("on purpose"),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.seen.ask();
        self.seen.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// A store in a directory of its own.
pub struct Fixture {
    pub store: Arc<Store>,
    pub disk: FaultyDisk,
    pub seen: Arc<Seen>,
    pub base: tempfile::TempDir,
}

impl Fixture {
    pub fn new(target: u64, limit: u64) -> Self {
        let base = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new();
        let options = Options {
            target,
            retry: Duration::from_millis(5),
            patience: None,
            sync: false,
            ..Options::new(base.path(), limit)
        };
        let store = Arc::new(Store::on_disk(options, Arc::new(disk.clone())).unwrap());
        let seen = Arc::new(Seen::default());
        seen.store.set(Arc::downgrade(&store)).unwrap();
        Fixture {
            store,
            disk,
            seen,
            base,
        }
    }

    /// Puts a live object whose bytes follow from its id.
    pub fn put(&self, object: u64, length: usize) {
        let form = Value::form(object, length, &self.seen);
        self.store.put(id(object), form, LONG).unwrap();
    }

    pub fn spilled(&self, object: u64) -> bool {
        let info = self.store.info(id(object)).unwrap();
        info.file && !info.live && !info.frames && !info.shared
    }

    /// Waits until the store is at its target, and verifies its books.
    pub fn settle(&self) {
        eventually("at the target", || {
            let stats = self.store.stats();
            stats.managed <= stats.target
        });
        self.check();
    }

    pub fn check(&self) {
        self.store.check().unwrap();
    }

    /// Files in the store's directory, but for its lock.
    pub fn files(&self) -> Vec<String> {
        files(self.store.directory())
    }
}

pub fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lock")
        .collect();
    names.sort();
    names
}
