//! Servers that are killed, and calls that end before they are done.

use std::cell::Cell;
use std::time::Duration;

use treadle_shuffle_client::{Error, Wait};

use crate::support::{Servers, compare, filled, lost_maps, register, soon, write, write_all};

#[test]
fn a_server_is_killed_and_nothing_runs_again() {
    let servers = Servers::new();
    let (a, _b, _c) = (servers.start("a"), servers.start("b"), servers.start("c"));
    let service = servers.connect();
    let shuffle = register(&service, 6, 16);
    let mut receipts: Vec<_> = (0..3).map(|map| write(&shuffle, map, false)).collect();
    a.kill();
    receipts.extend((3..6).map(|map| write(&shuffle, map, false)));
    let generation = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, generation);
    assert!(shuffle.lost(&mut soon()).unwrap().is_empty());
}

#[test]
fn all_copies_are_lost_before_the_commit_and_exactly_the_maps_with_rows_run_again() {
    let servers = Servers::new();
    let (a, b) = (servers.start("a"), servers.start("b"));
    let service = servers.connect();
    let shuffle = register(&service, 5, 8);
    let mut receipts = write_all(&shuffle);
    a.kill();
    b.kill();
    let _c = servers.start("c");
    let error = shuffle.commit(&receipts, &mut soon()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("shuffle numbers: ") && text.contains("Write maps 0, 2-3 again"),
        "{text}"
    );
    let maps = lost_maps(error);
    // Maps 1 and 4 have no rows.
    assert_eq!(maps, [0, 2, 3]);
    assert_eq!(shuffle.lost(&mut soon()).unwrap(), maps);
    for map in maps {
        receipts[map as usize] = write(&shuffle, map, true);
    }
    let generation = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, generation);
}

#[test]
fn all_copies_are_lost_after_the_commit_and_readers_say_which_maps_run_again() {
    let servers = Servers::new();
    let (a, b) = (servers.start("a"), servers.start("b"));
    let service = servers.connect();
    let shuffle = register(&service, 3, 4);
    let mut receipts = write_all(&shuffle);
    let first = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, first);
    a.kill();
    b.kill();
    let _c = servers.start("c");
    let error = shuffle.reader(first).read(2, &mut soon()).unwrap_err();
    let maps = lost_maps(error);
    assert_eq!(maps, [0, 2]);
    for &map in &maps {
        receipts[map as usize] = write(&shuffle, map, true);
    }
    let second = shuffle.commit(&receipts, &mut soon()).unwrap();
    assert!(second > first);
    compare(&shuffle, second);
    // Who has the earlier generation is told the later one.
    match shuffle.reader(first).read(2, &mut soon()) {
        Err(Error::Superseded { committed, .. }) => assert_eq!(committed, Some(second)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_is_interrupted_or_its_time_passes_and_the_writer_can_go_on() {
    let servers = Servers::new();
    let service = servers.connect();
    // There is no server.
    let shuffle = register(&service, 1, 4);
    let writer = filled(&shuffle, 0);
    let asked = Cell::new(0);
    let mut interrupted = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    let mut wait = soon().unless(&mut interrupted);
    let error = writer.finish(&mut wait).unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
    assert!(asked.get() > 3);
    let error = writer
        .finish(&mut Wait::within(Duration::from_millis(50)))
        .unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(
        error.to_string().starts_with("shuffle numbers, map 0: "),
        "{error}"
    );
    let _a = servers.start("a");
    let receipt = writer.finish(&mut soon()).unwrap();
    let generation = shuffle.commit(&[receipt], &mut soon()).unwrap();
    compare(&shuffle, generation);
}
