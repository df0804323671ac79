//! A device: in which order requests are carried out, and what it says.

use std::time::Duration;

use treadle_shuffle::{
    Access, ApplicationId, Config, Device, DeviceEffect, DeviceEvent, DeviceOptions, Outcome,
    Request, ShuffleError, Tenant,
};

const MILLI: Duration = Duration::from_millis(1);

struct Disk {
    device: Device,
    now: Duration,
    number: u64,
}

/// Turns that begin: their numbers, and those of the requests.
type Turns = Vec<(u64, Vec<u64>)>;

impl Disk {
    fn new(is_rotational: bool, most: usize) -> Self {
        let mut options = DeviceOptions::new(&Config::default(), is_rotational);
        (options.depth, options.most) = (1, most);
        Self {
            device: Device::new(options),
            now: Duration::ZERO,
            number: 0,
        }
    }

    fn event(&mut self, event: DeviceEvent) -> Vec<DeviceEffect> {
        let mut effects = Vec::new();
        self.device.handle(event, self.now, &mut effects).unwrap();
        self.device.check().unwrap();
        effects
    }

    /// Asks for bytes at an offset of file 1, and answers the number.
    fn ask(&mut self, application: u64, access: Access, offset: u64, bytes: u64) -> (u64, Turns) {
        self.number += 1;
        let effects = self.event(DeviceEvent::Asked(Request {
            number: self.number,
            tenant: Tenant {
                application: ApplicationId(application),
                priority: 1,
            },
            access,
            file: 1,
            offset,
            bytes,
        }));
        (self.number, turns(&effects))
    }

    fn read(&mut self, application: u64, offset: u64) -> u64 {
        self.ask(application, Access::Read, offset, 100).0
    }

    fn done(&mut self, turn: u64, outcome: Outcome, took: Duration) -> Turns {
        self.now += took;
        turns(&self.event(DeviceEvent::Done { turn, outcome }))
    }
}

fn turns(effects: &[DeviceEffect]) -> Turns {
    let turns = effects.iter().filter_map(|effect| match effect {
        DeviceEffect::Begin { turn, requests } => Some((*turn, requests.clone())),
        _ => None,
    });
    turns.collect()
}

#[test]
fn reads_of_a_rotating_disk_are_in_the_order_of_their_places_and_neighbours_are_one_turn() {
    let mut disk = Disk::new(true, 100);
    let (first, begun) = disk.ask(1, Access::Read, 0, 100);
    let [(turn, requests)] = &begun[..] else {
        panic!("{begun:?}");
    };
    assert_eq!(requests, &[first]);
    let [far, near, next] = [900_000, 500, 600].map(|offset| disk.read(1, offset));
    let begun = disk.done(*turn, Outcome::Done, 10 * MILLI);
    assert_eq!(begun[0].1, [near, next, far]);
    // Others of the same place are not ordered.
    let mut disk = Disk::new(false, 100);
    let (_, begun) = disk.ask(1, Access::Read, 0, 100);
    let far = disk.read(1, 900_000);
    disk.read(1, 500);
    let begun = disk.done(begun[0].0, Outcome::Done, MILLI);
    assert_eq!(begun[0].1, [far]);
}

#[test]
fn who_was_given_less_of_the_time_is_next_and_writes_are_before_reads() {
    let mut disk = Disk::new(false, 100);
    let (_, begun) = disk.ask(1, Access::Read, 0, 4 << 20);
    disk.ask(1, Access::Read, 0, 4 << 20);
    let small: Vec<u64> = (0..3).map(|at| disk.read(2, at)).collect();
    let mut turn = begun[0].0;
    for expected in small {
        let begun = disk.done(turn, Outcome::Done, MILLI);
        assert_eq!(begun[0].1, [expected]);
        turn = begun[0].0;
    }
    let (write, _) = disk.ask(1, Access::Write, 0, 100);
    assert_eq!(disk.done(turn, Outcome::Done, MILLI)[0].1, [write]);
}

#[test]
fn more_than_may_wait_is_refused() {
    let mut disk = Disk::new(false, 2);
    for at in 0..3 {
        disk.read(1, at);
    }
    disk.number += 1;
    let request = Request {
        number: disk.number,
        tenant: Tenant::default(),
        access: Access::Read,
        file: 1,
        offset: 0,
        bytes: 1,
    };
    let effects = disk.event(DeviceEvent::Asked(request));
    assert_eq!(effects, [DeviceEffect::Refuse(disk.number)]);
    let unknown = DeviceEvent::Done {
        turn: 1 << 40,
        outcome: Outcome::Done,
    };
    let handled = disk.device.handle(unknown, disk.now, &mut Vec::new());
    assert_eq!(handled, Err(ShuffleError::NotAwaited));
}

#[test]
fn a_device_that_fails_or_is_full_or_slow_gets_fewer_files_until_it_works() {
    let mut disk = Disk::new(false, 100);
    let mut write = |outcome, took: Duration| {
        let (_, begun) = disk.ask(1, Access::Write, 0, 4 << 20);
        disk.done(begun[0].0, outcome, took);
        (disk.device.weight(), disk.device.standing())
    };
    for _ in 0..3_000 {
        write(Outcome::Done, 40 * MILLI);
    }
    let (usual, standing) = write(Outcome::Done, 40 * MILLI);
    assert!(!standing.is_slow && !standing.is_full && standing.failures == 0);
    let (failed, _) = write(Outcome::Failed, MILLI);
    assert!(failed <= usual / 2 + 1, "{failed} of {usual}");
    let (again, standing) = write(Outcome::Failed, MILLI);
    assert!(again <= usual / 4 + 1 && standing.failures == 2);
    let (works, _) = write(Outcome::Done, 40 * MILLI);
    assert!(works.abs_diff(usual) <= usual / 100, "{works} of {usual}");
    let (full, standing) = write(Outcome::Full, MILLI);
    assert!(full == 1 && standing.is_full);
    let mut last = write(Outcome::Done, 40 * MILLI);
    for _ in 0..100 {
        last = write(Outcome::Done, 400 * MILLI);
    }
    let (slow, standing) = &last;
    assert!(
        standing.is_slow && *slow <= usual / 5,
        "{slow} of {usual}: {standing:?}"
    );
    for _ in 0..300 {
        last = write(Outcome::Done, 40 * MILLI);
    }
    assert!(!last.1.is_slow && last.0 >= usual * 9 / 10, "{last:?}");
}

#[test]
fn a_device_that_was_full_is_given_files_again_after_a_while() {
    let mut disk = Disk::new(false, 100);
    let (_, begun) = disk.ask(1, Access::Write, 0, 4 << 20);
    disk.done(begun[0].0, Outcome::Full, MILLI);
    assert_eq!(disk.device.weight(), 1);
    // Something else happens there, after which it is looked at.
    disk.now += Duration::from_secs(60);
    disk.read(1, 0);
    assert!(disk.device.weight() > 1 && !disk.device.standing().is_full);
}

#[test]
fn what_nobody_wants_any_more_says_nothing_about_the_device() {
    let mut disk = Disk::new(false, 100);
    for _ in 0..100 {
        let (_, begun) = disk.ask(1, Access::Read, 0, 100);
        disk.done(begun[0].0, Outcome::Done, 10 * MILLI);
    }
    let before = disk.device.standing();
    for _ in 0..1_000 {
        let (_, begun) = disk.ask(1, Access::Read, 0, 100);
        disk.done(begun[0].0, Outcome::Nothing, Duration::ZERO);
    }
    let after = disk.device.standing();
    assert_eq!(after.operation, before.operation);
    assert_eq!(after.read_latency, before.read_latency);
}
