//! At how many servers a shuffle is.

use serde_json::Value;
use treadle_shuffle_client::{Service, Spec};

use crate::support::{Servers, compare, soon, write_all};

/// Writes a shuffle, compares its rows, and counts the servers that have some of it.
fn used(service: &Service, name: &str, expected: u64) -> usize {
    let spec = Spec::new(3, 12).name(name).expected(expected);
    let shuffle = service.register(&spec, &mut soon()).unwrap();
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    compare(&shuffle, generation);
    let state: Value = serde_json::from_str(&service.state(&mut soon()).unwrap()).unwrap();
    let servers = state["servers"].as_array().unwrap().iter();
    let used = servers.filter(|server| server["partitions"].as_u64().unwrap() > 0);
    let used = used.count();
    shuffle.finish(&mut soon()).unwrap();
    used
}

#[test]
fn a_shuffle_that_is_expected_to_be_small_is_at_few_servers() {
    let servers = Servers::new();
    let _all: Vec<_> = ["a", "b", "c", "d", "e"]
        .map(|name| servers.start(name))
        .into();
    let service = servers.connect();
    assert_eq!(used(&service, "known", 1_000), 2);
    // One of the five may be slow for a moment. Tests of the core have the exact numbers.
    assert!(used(&service, "large", 10_000_000_000) > 2);
    assert!(used(&service, "again", 0) > 2, "nothing is known of it");
    // What the last one of this name had is remembered.
    assert_eq!(used(&service, "again", 0), 2);
}
