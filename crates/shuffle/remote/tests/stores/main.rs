//! Objects in real stores: a directory; with `make test-remote` also an S3-compatible server and HDFS.

mod proxy;

use std::time::{Duration, Instant};

use proxy::{Fault, Proxy};
use treadle_shuffle_remote::{Location, Object, PART, RemoteError, Store};

/// How long others wait for a manifest to change, and bytes of parts that are read at once.
const LEASE: Duration = Duration::from_secs(3600);
const READING: u64 = 16 << 20;
/// How long may be waited for what happens in other threads.
const SOON: Duration = Duration::from_secs(120);

/// A directory, and the stores that `TREADLE_TEST_REMOTES` names, each with a place that nobody else has.
fn stores(test: &str) -> (tempfile::TempDir, Vec<Location>) {
    let directory = tempfile::tempdir().unwrap();
    let local = format!("file://{}", directory.path().display());
    let named = std::env::var("TREADLE_TEST_REMOTES").unwrap_or_default();
    let all = [local.as_str()].into_iter().chain(named.split_whitespace());
    let pid = std::process::id();
    let all = all.map(|location| {
        let (place, options) = location.split_once('?').unwrap_or((location, ""));
        let options = if options.is_empty() {
            String::new()
        } else {
            format!("?{options}")
        };
        format!("{place}/{test}-{pid}{options}").parse().unwrap()
    });
    let all = all.collect();
    (directory, all)
}

fn open(location: &Location, lease: Duration) -> Store {
    Store::open(location, lease, READING).unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes in which no position is like another one.
fn bytes(length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

fn write(store: &Store, content: &[u8]) -> Result<Object, RemoteError> {
    let mut upload = store.upload()?;
    for pieces in content.chunks(3 << 20) {
        let (one, other) = pieces.split_at(pieces.len() / 3);
        upload.append(&[one, &[], other])?;
    }
    upload.finish()
}

fn read(object: &Object, at: usize, length: usize) -> Result<Vec<u8>, RemoteError> {
    let mut into = vec![0; length];
    object.read_at(at as u64, &mut into).map(|()| into)
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_written_in_parts_is_read_in_ranges() {
    let (_directory, all) = stores("ranges");
    for location in all {
        let store = open(&location, LEASE);
        for length in [0, 1, PART - 1, PART, PART + 1, 3 * PART + 12_345] {
            let content = bytes(length);
            let object = write(&store, &content).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(object.length(), length as u64);
            for (at, end) in [
                (0, length),
                (0, 1),
                (length / 3, length / 2),
                (length / 2, length),
            ] {
                let (at, end) = (at.min(length), end.min(length));
                let found = read(&object, at, end - at).unwrap_or_else(|error| panic!("{error}"));
                assert!(
                    found == content[at..end],
                    "{location}: {at}..{end} of {length}"
                );
            }
            assert!(read(&object, length, 1).is_err(), "beyond the end");
        }
        store.close();
    }
}

#[test]
fn several_threads_write_and_read_at_once() {
    let (_directory, all) = stores("threads");
    for location in all {
        let store = open(&location, LEASE);
        let content = bytes(2 * PART + 5);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let object = write(&store, &content).unwrap();
                    for _ in 0..4 {
                        assert!(
                            read(&object, 7, 2 * PART - 2).unwrap() == content[7..2 * PART + 5]
                        );
                    }
                });
            }
        });
        store.close();
    }
}

#[test]
fn an_object_goes_with_its_last_owner_and_all_with_the_store() {
    let (directory, _) = stores("removal");
    let location = format!("file://{}", directory.path().display());
    let objects = || {
        let folders = std::fs::read_dir(directory.path()).unwrap();
        let folders = folders
            .map(|folder| folder.unwrap().path())
            .filter(|path| path.is_dir());
        let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".shuffle")).count()
    };
    let store = open(&location.parse().unwrap(), LEASE);
    let kept = write(&store, &bytes(100)).unwrap();
    let dropped = write(&store, &bytes(PART + 1)).unwrap();
    assert_eq!(objects(), 2);
    drop(dropped);
    until("the object is removed", || objects() == 1);
    let mut unfinished = store.upload().unwrap();
    unfinished.append(&[&bytes(PART + 1)]).unwrap();
    drop(unfinished);
    until("nothing is left of what was not finished", || {
        objects() == 1
    });
    drop(open(&location.parse().unwrap(), LEASE));
    let left = || std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left(), 1, "one that is dropped leaves nothing, either");
    store.close();
    assert_eq!(left(), 0);
    assert_eq!(read(&kept, 0, 1), Err(RemoteError::Closed));
    assert!(
        store
            .upload()
            .is_err_and(|error| error == RemoteError::Closed)
    );
}

/// Where the process of the next test dies.
const DIES_AT: &str = "TREADLE_TEST_DIES_AT";

/// Not a test by itself: the next one runs it in a process of its own.
#[test]
fn a_process_that_dies() {
    if let Ok(location) = std::env::var(DIES_AT) {
        let store = open(&location.parse().unwrap(), Duration::from_secs(1));
        let _object = write(&store, &bytes(10)).unwrap();
        std::process::abort();
    }
}

#[test]
fn what_a_dead_process_has_left_is_removed_and_what_others_have_is_not() {
    let (directory, _) = stores("sweep");
    let text = format!("file://{}", directory.path().display());
    let folders = || std::fs::read_dir(directory.path()).unwrap().count();
    let program = std::env::current_exe().unwrap();
    let mut dying = std::process::Command::new(program);
    let died = dying
        .args(["a_process_that_dies", "--exact"])
        .env(DIES_AT, &text);
    assert!(!died.output().unwrap().status.success());
    std::fs::create_dir(directory.path().join("treadle-of-somebody")).unwrap();
    assert_eq!(folders(), 2, "it has left something");
    let location = text.parse().unwrap();
    let (one, other) = (open(&location, LEASE), open(&location, LEASE));
    // It is said at once, and not after what is left of the longer one.
    other.set_lease(Duration::from_secs(1));
    let kept = write(&one, &bytes(10)).unwrap();
    until("what the dead one has left is removed", || folders() == 3);
    assert_eq!(read(&kept, 0, 10), Ok(bytes(10)));
    one.close();
    other.close();
    assert_eq!(folders(), 1, "what is not a server's stays");
}

#[test]
fn who_waits_for_the_manifest_of_another_process_goes_on_renewing_its_own() {
    let (directory, _) = stores("hanging");
    let text = format!("file://{}", directory.path().display());
    let hanging = directory.path().join("treadle-1-0000000000000001");
    let dead = directory.path().join("treadle-1-0000000000000002");
    for place in [&hanging, &dead] {
        std::fs::create_dir(place).unwrap();
    }
    // Whoever opens it to read waits until somebody writes.
    let mut pipe = std::process::Command::new("mkfifo");
    let made = pipe.arg(hanging.join("manifest")).status();
    assert!(made.unwrap().success());
    let store = open(&text.parse().unwrap(), Duration::from_secs(1));
    let folder = store.folder().unwrap();
    let manifests = || {
        let folders = std::fs::read_dir(directory.path()).unwrap();
        let folders = folders.map(|folder| folder.unwrap().path());
        let own = folders.filter(|path| *path != hanging && *path != dead);
        let own = own.map(|path| (path.clone(), std::fs::read(path.join("manifest")).unwrap()));
        own.collect::<std::collections::BTreeMap<_, _>>()
    };
    for turn in 0..4 {
        let before = manifests();
        assert_eq!(before.len(), 2);
        until(&format!("its manifests change, {turn}"), || {
            let now = manifests();
            before.iter().all(|(path, text)| now[path] != *text)
        });
    }
    until("what is dead is removed meanwhile", || !dead.exists());
    assert!(hanging.exists());
    drop(folder);
    store.close();
}

#[test]
fn what_another_process_has_adopted_outlives_the_one_that_wrote_it() {
    let (directory, _) = stores("adopted");
    let location = format!("file://{}", directory.path().display());
    let location = location.parse().unwrap();
    let lease = Duration::from_secs(4);
    let [writer, adopter, other] = [(); 3].map(|()| open(&location, lease));
    let content = bytes(PART + 1);
    let folder = writer.folder().unwrap();
    let write = |content: &[u8]| {
        let mut upload = folder.upload().unwrap();
        upload.append(&[content]).unwrap();
        upload.finish().unwrap()
    };
    let (object, beside) = (write(&content), write(&content[..9]));
    let name = object.name().to_string();
    let place = directory.path().join(&name);
    let adopting = adopter.adopt(&name).unwrap();
    let adopted = adopting.object(&name).unwrap();
    assert!(adopting.object(beside.name()).is_ok());
    drop(beside);
    object.leave();
    drop((object, folder));
    writer.close();
    // It is found dead, and the one that was adopted is not.
    let dead = directory.path().join("treadle-1-0000000000000001");
    std::fs::create_dir(&dead).unwrap();
    until("a dead directory is removed", || !dead.exists());
    assert!(read(&adopted, 0, content.len()).unwrap() == content);
    // Whoever adopts it next has it after that one, too.
    let next = other.adopt(&name).unwrap();
    let again = next.object(&name).unwrap();
    adopted.leave();
    drop((adopted, adopting));
    adopter.close();
    std::fs::create_dir(&dead).unwrap();
    until("a dead directory is removed", || !dead.exists());
    assert!(read(&again, 0, content.len()).unwrap() == content);
    drop((again, next));
    until("it is removed with its last owner", || !place.exists());
    let left = || std::fs::read_dir(directory.path()).unwrap().count();
    until("its directory is removed", || left() == 1);
    for name in [
        "treadle-1-0000000000000001/manifest",
        "../treadle-1-0000000000000001/1.shuffle",
        "treadle-1-0000000000000001/../1.shuffle",
        "1.shuffle",
    ] {
        let refused = other.adopt(name).map(drop).unwrap_err().to_string();
        assert!(refused.contains("it is no object"), "{refused}");
    }
    other.close();
}

#[test]
fn a_directory_goes_with_its_last_object_unless_one_is_left() {
    let (directory, _) = stores("folders");
    let location = format!("file://{}", directory.path().display());
    let store = open(&location.parse().unwrap(), LEASE);
    let left = || std::fs::read_dir(directory.path()).unwrap().count();
    for is_left in [false, true] {
        let folder = store.folder().unwrap();
        let object = {
            let mut upload = folder.upload().unwrap();
            upload.append(&[b"rows"]).unwrap();
            upload.finish().unwrap()
        };
        drop(folder);
        assert_eq!((left(), read(&object, 0, 4)), (2, Ok(b"rows".to_vec())));
        if is_left {
            object.leave();
            drop(object);
            assert_eq!(left(), 2);
        } else {
            drop(object);
            until("it is removed", || left() == 1);
        }
    }
    store.close();
    assert_eq!(left(), 1, "what was left may be somebody's");
}

#[test]
fn a_store_that_is_not_there_is_named_and_no_secret_is() {
    // Nobody listens at port 1.
    for text in [
        "s3://rows/a?endpoint=http://127.0.0.1:1",
        "hdfs://127.0.0.1:1/a",
    ] {
        let location: Location = text.parse().unwrap();
        let error = Store::open(&location, LEASE, READING)
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
    let place = tempfile::NamedTempFile::new().unwrap();
    let text = format!("file://{}/a", place.path().display());
    let error = Store::open(&text.parse().unwrap(), LEASE, READING).unwrap_err();
    assert!(error.to_string().contains(&text), "{error}");
}

/// The URL of the S3-compatible server, where there is one.
fn s3() -> Option<String> {
    let named = std::env::var("TREADLE_TEST_REMOTES").ok()?;
    let mut named = named.split_whitespace().map(String::from);
    named.find(|location| location.starts_with("s3://"))
}

/// A store behind a proxy that does what a fault says to the first so many connections.
fn disturbed(test: &str, fault: Fault, times: usize) -> (Proxy, Store) {
    let location = s3().unwrap();
    let (bucket, endpoint) = location.split_once("?endpoint=http://").unwrap();
    let (endpoint, rest) = endpoint.split_once('&').unwrap_or((endpoint, ""));
    let proxy = Proxy::start(endpoint);
    let text = format!(
        "{bucket}/{test}-{}?endpoint=http://{}&{rest}",
        std::process::id(),
        proxy.address()
    );
    let store = open(&text.parse().unwrap(), LEASE);
    proxy.disturb(fault, times);
    (proxy, store)
}

#[test]
#[ignore = "make test-remote starts the server"]
fn a_server_that_answers_503_is_asked_again() {
    let (proxy, store) = disturbed("busy", Fault::Busy, 2);
    let content = bytes(3 * PART);
    let object = write(&store, &content).unwrap_or_else(|error| panic!("{error}"));
    proxy.disturb(Fault::Busy, 2);
    assert!(read(&object, 0, 3 * PART).unwrap_or_else(|error| panic!("{error}")) == content);
    assert!(proxy.disturbed() >= 3);
    // It does not go on for ever.
    proxy.disturb(Fault::Busy, usize::MAX);
    let error = read(&object, 0, 10).unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
    assert!(write(&store, &content).is_err());
    proxy.disturb(Fault::Busy, 0);
    store.close();
}

#[test]
#[ignore = "make test-remote starts the server"]
fn a_connection_that_breaks_in_the_middle_loses_nothing() {
    let (proxy, store) = disturbed("cut", Fault::Cut, 2);
    let content = bytes(3 * PART);
    let object = write(&store, &content).unwrap_or_else(|error| panic!("{error}"));
    proxy.disturb(Fault::Cut, 2);
    assert!(read(&object, 0, 3 * PART).unwrap_or_else(|error| panic!("{error}")) == content);
    assert!(proxy.disturbed() >= 3);
    proxy.disturb(Fault::Cut, 0);
    store.close();
}

#[test]
#[ignore = "make test-remote starts the server"]
fn a_slow_server_is_waited_for() {
    let (proxy, store) = disturbed("slow", Fault::Slow, usize::MAX);
    let content = bytes(PART + 1);
    let object = write(&store, &content).unwrap_or_else(|error| panic!("{error}"));
    assert!(read(&object, 1, PART).unwrap_or_else(|error| panic!("{error}")) == content[1..]);
    assert!(proxy.disturbed() > 0);
    proxy.disturb(Fault::Slow, 0);
    store.close();
}

/// Both say that they own it, at once, and neither is refused.
#[test]
fn one_object_is_adopted_by_several_at_once() {
    let (directory, _) = stores("at-once");
    let location = format!("file://{}", directory.path().display());
    let location = location.parse().unwrap();
    let [writer, one, other] = [(); 3].map(|()| open(&location, LEASE));
    let folder = writer.folder().unwrap();
    let mut upload = folder.upload().unwrap();
    upload.append(&[b"rows"]).unwrap();
    let object = upload.finish().unwrap();
    std::thread::scope(|scope| {
        for store in [&one, &other] {
            let name = object.name();
            scope.spawn(move || {
                for _ in 0..100 {
                    let adopted = store.adopt(name).unwrap();
                    adopted.object(name).unwrap().leave();
                }
            });
        }
    });
    drop((object, folder));
    for store in [writer, one, other] {
        store.close();
    }
}
