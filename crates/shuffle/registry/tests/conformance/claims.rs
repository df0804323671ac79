//! What each kind of registry must do for the masters of applications.

use std::time::{Duration, Instant};

use treadle_shuffle_registry::{Claim, ClaimStanding, Master, Registry};

use crate::watcher::{LIMIT, Watcher};
use crate::{Kind, connect};

fn master(application: u64, number: u32) -> Master {
    Master {
        application,
        address: format!("treadle://h:{number}"),
        number,
    }
}

fn claim(registry: &dyn Registry, master: &Master) -> Box<dyn Claim> {
    let claim = registry.claim(master.clone()).expect("an address");
    claim.expect("the registry keeps masters")
}

fn wait_until(claim: &dyn Claim, is_so: impl Fn(&ClaimStanding) -> bool) {
    let end = Instant::now() + LIMIT;
    let mut standing = claim.standing();
    while !is_so(&standing) {
        assert!(Instant::now() < end, "it stands as {standing:?}");
        standing = claim.wait(&standing, Duration::from_secs(1));
    }
}

fn is_held(claim: &dyn Claim) {
    wait_until(claim, |standing| *standing == ClaimStanding::Held);
}

fn is_elsewhere(claim: &dyn Claim, other: &Master) {
    let expected = ClaimStanding::Elsewhere(other.clone());
    wait_until(claim, |standing| *standing == expected);
}

pub(crate) fn an_application_has_one_master<K: Kind>() {
    let kind = K::start();
    let registry = connect(&kind.location(None));
    let (first, second, other) = (master(7, 1), master(7, 2), master(8, 3));
    assert_eq!(registry.masters(LIMIT).expect("it answers"), []);
    let held = claim(&*registry, &first);
    is_held(&*held);
    let late = claim(&*registry, &second);
    is_elsewhere(&*late, &first);
    let apart = claim(&*registry, &other);
    is_held(&*apart);
    let mut masters = registry.masters(LIMIT).expect("it answers");
    masters.sort_by_key(|master| master.number);
    assert_eq!(masters, [first, other.clone()]);
    // Masters are no servers, and none that cannot be read.
    let mut watcher = Watcher::new(&*registry);
    watcher.wait_for(&[]);
    let more = claim(&*registry, &master(9, 4));
    is_held(&*more);
    watcher.follow(Duration::from_millis(500));
    assert!(watcher.now().entries.is_empty() && !watcher.has_skipped());
    // Who comes after the end of the first is the master.
    held.withdraw(LIMIT).expect("it is withdrawn in time");
    is_held(&*late);
    apart.withdraw(LIMIT).expect("it is withdrawn in time");
    // One that is dropped ends, too.
    drop(more);
    let end = Instant::now() + LIMIT;
    while registry.masters(LIMIT).expect("it answers") != [second.clone()] {
        assert!(Instant::now() < end, "masters that have ended stay");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn the_master_of_an_application_stays_it_while_the_registry_is_away<K: Kind>() {
    let mut kind = K::start();
    let registry = connect(&kind.location(None));
    let (first, second) = (master(7, 1), master(7, 2));
    let held = claim(&*registry, &first);
    is_held(&*held);
    for forgets in [false, true] {
        kind.kill();
        wait_until(&*held, |standing| {
            matches!(standing, ClaimStanding::Away(_))
        });
        let error = registry
            .masters(Duration::from_secs(2))
            .expect_err("nobody answers");
        assert!(error.to_string().contains(&registry.location()), "{error}");
        kind.restart(forgets);
        is_held(&*held);
        let late = claim(&*registry, &second);
        is_elsewhere(&*late, &first);
    }
}
