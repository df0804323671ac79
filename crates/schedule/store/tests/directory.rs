//! The directory of the files: private, gone with the store, and removed after a crash.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::{Fixture, LONG, Seen, Value, eventually, id};
use treadle_store::{Options, Store, StoreError};

const BASE: &str = "TREADLE_TEST_STORE_BASE";

fn options(base: &Path) -> Options {
    Options {
        target: 0,
        ..Options::new(base, 10_000)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn nobody_else_may_look() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 100);
    f.settle();
    assert_eq!(mode(f.store.directory()), 0o700);
    let names = f.files();
    assert_eq!(names.len(), 1);
    assert_eq!(mode(&f.store.directory().join(&names[0])), 0o600);
    assert_eq!(mode(&f.store.directory().join("lock")), 0o600);
    let name = f.store.directory().file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("treadle-{}-", std::process::id())));
}

#[test]
fn it_goes_with_the_store_and_pins_outlive_it() {
    let base = tempfile::tempdir().unwrap();
    let below = base.path().join("made/where/missing");
    let store = Store::open(options(&below)).unwrap();
    let seen = Arc::new(Seen::default());
    for object in 1..=2 {
        let form = Value::form(object, 100, &seen);
        store.put(id(object), form, LONG).unwrap();
    }
    eventually("spilled", || store.stats().spilled.count == 2);
    let mut pinned = store.get(id(1)).unwrap();
    let directory = store.directory().to_path_buf();
    drop(store);
    assert!(!directory.exists());
    assert_eq!(fs::read_dir(&below).unwrap().count(), 0);
    assert_eq!(pinned.frames().unwrap().parts(), [common::bytes(1, 100)]);
}

#[test]
fn a_target_above_the_limit_is_an_error() {
    let base = tempfile::tempdir().unwrap();
    let options = Options {
        target: 11,
        ..Options::new(base.path(), 10)
    };
    let error = Store::open(options).unwrap_err();
    assert!(matches!(
        error,
        StoreError::Target {
            target: 11,
            limit: 10
        }
    ));
    assert_eq!(Options::new(base.path(), 1001).target, 600);
    assert_eq!(
        Options::from_cgroup(base.path()).limit,
        treadle_memory::memory_limit()
    );
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(options(&file)).unwrap_err();
    assert!(matches!(error, StoreError::Disk(_)), "{error}");
    assert!(error.to_string().contains("file"), "{error}");
}

/// A process of its own with a store; see [`the_store_of_another_process`].
struct Other {
    process: Child,
    directory: PathBuf,
}

impl Other {
    fn start(base: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_store_of_another_process", "--nocapture"])
            .arg("--ignored")
            .env(BASE, base)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // The harness writes to the same line.
        let directory = lines
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once("directory=")?.1.to_owned()))
            .expect("the other process says where its store is");
        Other {
            process,
            directory: directory.into(),
        }
    }

    fn kill(mut self) -> PathBuf {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.directory
    }
}

#[test]
#[ignore = "the other process of the tests here; it holds a store until its input ends"]
fn the_store_of_another_process() {
    let Some(base) = std::env::var_os(BASE) else {
        return;
    };
    let store = Store::open(options(base.as_ref())).unwrap();
    let form = Value::form(1, 100, &Arc::new(Seen::default()));
    store.put(id(1), form, LONG).unwrap();
    eventually("spilled", || store.stats().spilled.count == 1);
    println!("directory={}", store.directory().display());
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let base = tempfile::tempdir().unwrap();
    let other = Other::start(base.path());
    let second = Store::open(options(base.path())).unwrap();
    assert!(
        other.directory.join("lock").exists(),
        "its process is alive"
    );
    let left = other.kill();
    assert!(left.join("lock").exists());
    let third = Store::open(options(base.path())).unwrap();
    assert!(!left.exists());
    assert!(second.directory().exists() && third.directory().exists());
}

#[test]
fn a_forked_child_does_not_touch_its_parents_files() {
    let f = Fixture::new(0, 10_000);
    f.put(1, 100);
    f.settle();
    let base = tempfile::tempdir().unwrap();
    let store = Store::open(options(base.path())).unwrap();
    // SAFETY: the child only drops the store, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(store);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let mut status = -1;
    eventually("the child ends", || {
        // SAFETY: waits for the child that was made above.
        (unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) }) == child
    });
    assert_eq!(status, 0);
    assert!(store.directory().join("lock").exists());
    // The child's end did not give the lock up.
    let _second = Store::open(options(base.path())).unwrap();
    assert!(store.directory().exists());
}
