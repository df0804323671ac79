//! A static list, and a file of one.

use std::time::Duration;

use treadle_shuffle_registry::{Entry, Location, Master, News, RegistryError, Standing};

use crate::connect;
use crate::watcher::Watcher;

fn at(address: &str) -> Entry {
    Entry {
        name: "any".to_owned(),
        incarnation: 1,
        address: address.to_owned(),
        ..Entry::default()
    }
}

#[test]
fn a_list_is_current_at_once_and_takes_its_servers_alone() {
    let location: Location = "static:a:1,treadle+tls://b:2".parse().expect("a URL");
    let registry = connect(&location);
    let mut master = Watcher::new(&*registry);
    let names = ["treadle+tls://b:2", "treadle://a:1"];
    master.wait_for(&names);
    let entry = &master.list[names[1]];
    assert_eq!(
        (entry.address.as_str(), entry.domain.as_str()),
        ("treadle://a:1", "a")
    );
    assert_eq!((entry.incarnation, entry.load), (0, None));
    let server = registry
        .register(at("treadle+tls://b:2"))
        .expect("it is in the list");
    assert_eq!(server.standing(), Standing::Registered);
    let refused = registry
        .register(at("treadle://b:2"))
        .err()
        .expect("it is not");
    assert!(matches!(refused, RegistryError::NotListed { .. }));
    assert!(refused.to_string().contains("treadle://b:2"), "{refused}");
    server
        .withdraw(Duration::ZERO)
        .expect("there is nothing to do");
    // It keeps no masters.
    let claimed = registry.claim(Master::default()).expect("it takes none");
    assert!(claimed.is_none());
    let refused = registry.masters(Duration::ZERO).expect_err("it has none");
    assert!(matches!(refused, RegistryError::NoMasters { .. }));
    master.follow(Duration::ZERO);
    assert!(master.has(&names));
}

#[test]
fn a_file_is_read_again_when_it_changes_and_its_last_list_stays_while_it_is_away() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("servers");
    let write = |text: &str| std::fs::write(&path, text).expect("there is room");
    write("a:1 # the first\n\n# b:2\nc:3\nd\n");
    let location: Location = format!("static:{}", path.display()).parse().expect("a URL");
    let registry = connect(&location);
    let mut master = Watcher::new(&*registry);
    master.wait_for(&["treadle://a:1", "treadle://c:3"]);
    let skipped = master.news.iter().find_map(|news| match news {
        News::Skipped { node, why } => Some(format!("{node}: {why}")),
        _ => None,
    });
    let skipped = skipped.expect("the last line is no address");
    assert!(
        skipped.contains("line 5") && skipped.contains("no port"),
        "{skipped}"
    );
    std::fs::remove_file(&path).expect("it is there");
    master.wait("the list is old", |master| master.now().age.is_some());
    let why = master.now().why.expect("it is old").why;
    assert!(why.contains(path.to_str().expect("it is text")), "{why}");
    assert!(master.has(&["treadle://a:1", "treadle://c:3"]) && !master.has_left());
    assert!(registry.register(at("treadle://a:1")).is_err());
    write("c:3\ne:5\n");
    master.wait_for(&["treadle://c:3", "treadle://e:5"]);
}
