//! What each kind of registry must do.

use std::time::{Duration, Instant};

use treadle_shuffle_registry::{
    Credentials, Entry, Load, News, Registration, Standing, encode_entry, open,
};

pub(crate) use crate::claims::{
    an_application_has_one_master, the_master_of_an_application_stays_it_while_the_registry_is_away,
};
pub(crate) use crate::large::ten_thousand_servers_are_listed;

use crate::certificates::Certificates;
use crate::child::ServerProcess;
use crate::proxy::Proxy;
use crate::watcher::{LIMIT, Watcher};
use crate::{Kind, config, connect, connect_as};

pub(crate) fn entry(name: &str, incarnation: u64) -> Entry {
    Entry {
        name: name.to_owned(),
        incarnation,
        address: format!("treadle://host-{}:{}", name.len(), 1_000 + incarnation),
        domain: "power 1".to_owned(),
        rack: "r/7".to_owned(),
        version: "1.2.3".to_owned(),
        host_kind: "ssd".to_owned(),
        weight: 2,
        newest: 2,
        oldest: 1,
        load: Some(Load {
            free: 1 << 40,
            ..Load::default()
        }),
        is_leaving: false,
    }
}

fn wait_until(
    server: &dyn Registration,
    what: &str,
    is_so: impl Fn(&Standing) -> bool,
) -> Standing {
    let end = Instant::now() + LIMIT;
    let mut standing = server.standing();
    while !is_so(&standing) {
        assert!(
            Instant::now() < end,
            "the server does not stand as {what}: {standing:?}"
        );
        standing = server.wait(&standing, Duration::from_secs(1));
    }
    standing
}

fn is_registered(standing: &Standing) -> bool {
    *standing == Standing::Registered
}

pub(crate) fn a_server_registers_refreshes_and_withdraws<K: Kind>() {
    let kind = K::start();
    let registry = connect(&kind.location(None));
    let mut early = Watcher::new(&*registry);
    early.wait_for(&[]);
    // Names that a path cannot have.
    let names = ["../a b%/ü", ".", "plain"];
    let servers = names.map(|name| registry.register(entry(name, 7)).expect("an entry"));
    early.wait_for(&[".", "../a b%/ü", "plain"]);
    let mut late = Watcher::new(&*registry);
    late.wait_for(&[".", "../a b%/ü", "plain"]);
    assert!(matches!(late.news.last(), Some(News::Current)));
    for name in names {
        assert_eq!(*early.list[name], entry(name, 7));
        assert_eq!(*late.list[name], entry(name, 7));
    }
    let load = Load {
        free: 3,
        held: 1 << 40,
        waiting: 5,
        is_full: true,
    };
    servers[0].refresh(load);
    servers[0].leave();
    // A load that changes little is written with the next look at others of the name.
    servers[2].refresh(Load {
        held: 1,
        ..entry("plain", 7).load.unwrap_or_default()
    });
    for watcher in [&mut early, &mut late] {
        watcher.wait("both loads are refreshed", |watcher| {
            let held = |name: &str| watcher.list[name].load.map(|load| load.held);
            let leaves = &watcher.list[names[0]];
            leaves.load == Some(load) && leaves.is_leaving && held("plain") == Some(1)
        });
        assert!(!watcher.has_left());
    }
    let [first, second, third] = servers;
    first.withdraw(LIMIT).expect("it is withdrawn in time");
    early.wait_for(&[".", "plain"]);
    // A registration that is dropped ends, too.
    drop(second);
    drop(third);
    early.wait_for(&[]);
    late.wait_for(&[]);
}

pub(crate) fn a_server_that_is_killed_leaves_when_its_session_ends<K: Kind>() {
    let kind = K::start();
    let location = kind.location(None);
    let mut master = Watcher::new(&*connect(&location));
    let server = ServerProcess::start(&location, "a");
    master.wait_for(&["a"]);
    server.signal("-KILL");
    master.wait_for(&[]);
}

pub(crate) fn a_server_that_stood_still_comes_back<K: Kind>() {
    let kind = K::start();
    let location = kind.location(None);
    let mut master = Watcher::new(&*connect(&location));
    let server = ServerProcess::start(&location, "a");
    master.wait_for(&["a"]);
    server.signal("-STOP");
    master.wait_for(&[]);
    server.signal("-CONT");
    master.wait_for(&["a"]);
    assert_eq!(*master.list["a"], entry("a", 1));
}

pub(crate) fn a_master_that_is_cut_off_keeps_its_list_and_learns_what_it_missed<K: Kind>() {
    let kind = K::start();
    let registry = connect(&kind.location(None));
    let proxy = Proxy::to(kind.port());
    let mut master = Watcher::new(&*connect(&kind.location(Some(proxy.port))));
    let stays = registry.register(entry("stays", 1)).expect("an entry");
    let leaves = registry.register(entry("leaves", 1)).expect("an entry");
    master.wait_for(&["leaves", "stays"]);
    proxy.cut(true);
    master.wait("the list is old", |master| master.now().age.is_some());
    assert!(master.has(&["leaves", "stays"]));
    let list = master.now();
    assert_eq!(list.entries.len(), 2);
    assert!(
        list.why
            .is_some_and(|why| !why.is_refusal && !why.why.is_empty())
    );
    leaves.withdraw(LIMIT).expect("it is withdrawn in time");
    let comes = registry.register(entry("comes", 1)).expect("an entry");
    wait_until(&*comes, "registered", is_registered);
    // How old the list is grows.
    let age = |master: &Watcher| master.now().age.flatten();
    let before = age(&master).expect("it was current once");
    master.wait("the list grows older", |master| {
        age(master).is_some_and(|age| age > before + Duration::from_secs(1))
    });
    proxy.cut(false);
    master.wait_for(&["comes", "stays"]);
    drop(stays);
    master.wait_for(&["comes"]);
}

pub(crate) fn a_server_that_is_cut_off_comes_back<K: Kind>() {
    let kind = K::start();
    let proxy = Proxy::to(kind.port());
    let mut master = Watcher::new(&*connect(&kind.location(None)));
    let registry = connect(&kind.location(Some(proxy.port)));
    let server = registry.register(entry("a", 1)).expect("an entry");
    master.wait_for(&["a"]);
    proxy.cut(true);
    master.wait_for(&[]);
    wait_until(&*server, "away", |standing| {
        matches!(standing, Standing::Away(_))
    });
    proxy.cut(false);
    master.wait_for(&["a"]);
    wait_until(&*server, "registered", is_registered);
}

pub(crate) fn of_two_servers_with_one_name_the_later_counts<K: Kind>() {
    let kind = K::start();
    let registry = connect(&kind.location(None));
    let mut master = Watcher::new(&*registry);
    let earlier = registry.register(entry("a", 5)).expect("an entry");
    master.wait("the first life", |master| {
        master
            .list
            .get("a")
            .is_some_and(|entry| entry.incarnation == 5)
    });
    let later = registry.register(entry("a", 6)).expect("an entry");
    master.wait("the second life", |master| {
        master
            .list
            .get("a")
            .is_some_and(|entry| entry.incarnation == 6)
    });
    let standing = wait_until(&*earlier, "superseded", |standing| {
        matches!(standing, Standing::Superseded(_))
    });
    let Standing::Superseded(rival) = standing else {
        unreachable!("it was waited for");
    };
    assert_eq!(
        (rival.incarnation, rival.address),
        (6, entry("a", 6).address)
    );
    // One that comes even later with an earlier incarnation never counts.
    let stale = registry.register(entry("a", 4)).expect("an entry");
    wait_until(&*stale, "superseded", |standing| {
        matches!(standing, Standing::Superseded(_))
    });
    wait_until(&*later, "registered", is_registered);
    assert_eq!(master.now().entries[0].incarnation, 6);
}

pub(crate) fn a_server_that_flaps_is_held_back<K: Kind>() {
    let kind = K::start();
    let registry = connect(&kind.location(None));
    let mut master = Watcher::new(&*registry);
    master.wait_for(&[]);
    let steady = registry.register(entry("steady", 1)).expect("an entry");
    let mut joins = 0;
    let (mut held, mut last) = (false, None);
    for incarnation in 1..=100 {
        let server = registry
            .register(entry("flaps", incarnation))
            .expect("an entry");
        wait_until(&*server, "registered", is_registered);
        master.news.clear();
        master.follow(Duration::ZERO);
        for news in &master.news {
            joins += usize::from(matches!(news, News::Joined(entry) if entry.name == "flaps"));
            held |= matches!(news, News::HeldBack { key, .. } if key.name == "flaps");
        }
        // Every other one ends before the next begins.
        match incarnation % 2 {
            0 => drop(server),
            _ => last = Some(server),
        }
    }
    assert!(held && joins <= 8, "it has joined {joins} times");
    drop(last);
    let server = registry.register(entry("flaps", 101)).expect("an entry");
    // It stays, and is listed.
    master.wait("the last life", |master| {
        master
            .list
            .get("flaps")
            .is_some_and(|entry| entry.incarnation == 101)
    });
    wait_until(&*server, "registered", is_registered);
    wait_until(&*steady, "registered", is_registered);
    assert!(master.has(&["flaps", "steady"]));
}

pub(crate) fn a_registry_that_is_away_stops_nothing<K: Kind>() {
    let mut kind = K::start();
    let registry = connect(&kind.location(None));
    let mut master = Watcher::new(&*registry);
    let names = ["a", "b", "c"];
    let servers = names.map(|name| registry.register(entry(name, 1)).expect("an entry"));
    master.wait_for(&names);
    kind.kill();
    master.wait("the list is old", |master| master.now().age.is_some());
    for server in &servers {
        wait_until(&**server, "away", |standing| {
            matches!(standing, Standing::Away(_))
        });
    }
    // Longer than a session.
    master.wait("a while passes", |master| {
        master.now().age.flatten() > Some(Duration::from_secs(6))
    });
    assert!(master.has(&names) && !master.has_left());
    kind.restart(false);
    master.wait("all are registered again", |master| {
        master.now().age.is_none()
            && servers
                .iter()
                .all(|server| is_registered(&server.standing()))
    });
    assert!(master.has(&names) && !master.has_left());
    // Updates come again.
    let more = registry.register(entry("d", 1)).expect("an entry");
    master.wait_for(&["a", "b", "c", "d"]);
    assert!(!master.has_left());
    more.withdraw(LIMIT).expect("it is withdrawn in time");
    master.wait_for(&names);
}

pub(crate) fn a_registry_that_has_forgotten_all_is_filled_again<K: Kind>() {
    let mut kind = K::start();
    let registry = connect(&kind.location(None));
    let mut master = Watcher::new(&*registry);
    let _server = registry.register(entry("a", 1)).expect("an entry");
    let other = connect(&kind.location(None));
    let gone = other.register(entry("b", 1)).expect("an entry");
    master.wait_for(&["a", "b"]);
    kind.kill();
    master.wait("the list is old", |master| master.now().age.is_some());
    drop(gone);
    kind.restart(true);
    // Who is there stays listed all the time, who has ended meanwhile is dropped.
    master.wait_for(&["a"]);
    let left = master
        .news
        .iter()
        .filter(|news| matches!(news, News::Left(_)));
    assert_eq!(left.count(), 1);
}

pub(crate) fn what_is_no_entry_is_skipped_and_named<K: Kind>() {
    let kind = K::start();
    let registry = connect(&kind.location(None));
    let whole = encode_entry(&entry("x", 1));
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    let key = |name: &str| format!("{name}/{:016x}", 1);
    kind.write(&[
        (key("x"), whole.clone()),
        (key("damaged"), damaged),
        (key("other"), whole),
        (key("text"), b"host:1".to_vec()),
        ("foreign/node".to_owned(), b"host:1".to_vec()),
    ]);
    let mut master = Watcher::new(&*registry);
    master.wait_for(&["x"]);
    let skipped = |master: &Watcher| {
        let news = master.news.iter().filter_map(|news| match news {
            News::Skipped { node, why } => Some((node.clone(), why.clone())),
            _ => None,
        });
        let mut all: Vec<_> = news.collect();
        all.sort();
        all
    };
    let nodes = skipped(&master);
    let expected = [
        (key("damaged"), "checksum"),
        ("foreign/node".to_owned(), "path"),
        (key("other"), "the entry of x"),
        (key("text"), "no entry"),
    ];
    assert_eq!(nodes.len(), expected.len(), "{nodes:?}");
    for ((node, why), (expected, part)) in nodes.iter().zip(&expected) {
        assert!(node == expected && why.contains(part), "{node}: {why}");
    }
    // One that comes later.
    kind.write(&[(key("later"), b"host:1".to_vec())]);
    master.wait("the later one is named", |master| {
        !skipped(master).is_empty()
    });
    assert!(master.has(&["x"]));
}

pub(crate) fn wrong_credentials_are_said<K: Kind>() {
    let kind = K::start();
    let [right, wrong] = kind.protect();
    let registry = connect_as(&kind.location(None), &right);
    let server = registry.register(entry("a", 1)).expect("an entry");
    let mut master = Watcher::new(&*registry);
    master.wait_for(&["a"]);
    wait_until(&*server, "registered", is_registered);
    let registry = connect_as(&kind.location(None), &wrong);
    let mut master = Watcher::new(&*registry);
    master.wait("it is refused", |master| {
        master.now().why.is_some_and(|why| why.is_refusal)
    });
    let why = master.now().why.expect("it was refused").why;
    assert!(
        why.contains("password") && !why.contains("mistaken"),
        "{why}"
    );
    assert_eq!(master.now().age, Some(None));
    let server = registry.register(entry("b", 1)).expect("an entry");
    let standing = wait_until(
        &*server,
        "refused",
        |standing| matches!(standing, Standing::Away(failure) if failure.is_refusal),
    );
    let Standing::Away(failure) = standing else {
        unreachable!("it was waited for");
    };
    assert!(failure.why.contains("password"), "{}", failure.why);
}

pub(crate) fn with_tls_both_sides_show_a_certificate<K: Kind>() {
    let certificates = Certificates::new();
    let kind = K::start_with_tls(&certificates);
    let location = kind.location(None);
    let right = certificates.credentials();
    let registry = connect_as(&location, &right);
    let _server = registry.register(entry("a", 1)).expect("an entry");
    let mut master = Watcher::new(&*registry);
    master.wait_for(&["a"]);
    // Neither a client without a certificate, nor one that trusts another authority.
    let other = Certificates::new().credentials();
    let without = Credentials {
        identity: None,
        ..right.clone()
    };
    for wrong in [other, without] {
        let registry = connect_as(&location, &wrong);
        let mut master = Watcher::new(&*registry);
        master.wait("it is not served", |master| master.now().why.is_some());
        assert!(master.list.is_empty());
    }
    // What is missing is said at once.
    let error = open(&location, &Credentials::default(), &config()).err();
    let error = error.expect("there is no authority").to_string();
    assert!(error.contains("TREADLE_REGISTRY_CA"), "{error}");
}
