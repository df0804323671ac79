//! At how many servers a shuffle is.

use std::collections::BTreeSet;

use serde_json::Value;
use treadle_shuffle_client::{Options, Service, Spec};

use crate::support::{Servers, compare, options, soon, write_all};

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

#[test]
fn applications_in_different_parts_are_at_different_servers() {
    let servers = Servers::new();
    let all = ["a", "b", "c", "d", "e", "f"].map(|name| servers.start(name));
    let at = |place: &str, application: u64| {
        let options = options(application).place(place).unwrap();
        Service::connect(&servers.master.address(), options, &mut soon()).unwrap()
    };
    let [one, other] = [at("1/2", 21), at("2/2", 22)];
    let names = |service: &Service| {
        let spec = Spec::new(3, 12).name("large").expected(10_000_000_000);
        let shuffle = service.register(&spec, &mut soon()).unwrap();
        let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
        compare(&shuffle, generation);
        let state: Value = serde_json::from_str(&service.state(&mut soon()).unwrap()).unwrap();
        let rows = state["servers"].as_array().unwrap().iter();
        let used = rows.filter(|server| server["partitions"].as_u64().unwrap() > 0);
        let used: BTreeSet<String> = used.map(|it| it["name"].to_string()).collect();
        (shuffle, used)
    };
    let ((first, here), (second, there)) = (names(&one), names(&other));
    assert!(here.is_disjoint(&there), "{here:?} {there:?}");
    assert!(here.len() > 1 && there.len() > 1, "{here:?} {there:?}");
    for shuffle in [first, second] {
        shuffle.finish(&mut soon()).unwrap();
    }
    assert!(Options::new().place("3/2").is_err());
    drop(all);
}
