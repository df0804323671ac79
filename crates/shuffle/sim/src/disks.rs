//! A disk that several applications use: [`Device`] is the production core, and the disk takes so long for an
//! operation and for a byte.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_shuffle::{
    Access, ApplicationId, Config, Device, DeviceEffect, DeviceEvent, DeviceOptions, Limit,
    Outcome, Request, Tenant,
};
use treadle_sim_kernel::Random;

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disks {
    /// Two to four applications want all that there is, with requests of any size, and one wants little.
    Shared,
    /// Reads follow one another for ever, and one is elsewhere.
    Sweep,
    /// More reads wait than are done within the time that is acceptable.
    Crowd,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct DiskSummary {
    /// Time of the disk that each application that wants all was given while it was measured.
    pub served: Vec<Duration>,
    /// The longest read of the application that wants little.
    pub modest: Duration,
    /// Nine of ten reads took no longer, in the end.
    pub read_latency: Duration,
    /// Whether reads were limited, and whether they are in the end.
    pub limited: (bool, bool),
    /// What those that want all were given while it was measured, and how many of that took longer than [`LONG`].
    pub done: u64,
    /// See there.
    pub late: u64,
}

/// When all want something, when it is measured, and when nothing is asked any more.
const MEASURED: Duration = Duration::from_secs(4);
const END: Duration = Duration::from_secs(20);

/// The service of which the published system speaks asks again for what takes longer, and does it twice.
const LONG: Duration = Duration::from_secs(1);

/// Invariants are verified after so many events: many requests wait.
const EACH: u64 = 16;

/// How an application uses the disk.
#[derive(Clone, Debug)]
struct User {
    tenant: Tenant,
    access: Access,
    bytes: (u64, u64),
    /// Requests under way.
    depth: usize,
    /// Whether each begins where the one before it ended.
    follows: bool,
    /// How often it asks; `None`: as soon as something is done.
    period: Option<Duration>,
    next: u64,
    open: usize,
    /// Reads that it may have, if the disk says so.
    most: Option<u32>,
}

enum Item {
    Ask(usize),
    Done(u64),
}

struct World {
    disks: Disks,
    random: Random,
    now: Duration,
    number: u64,
    agenda: BTreeMap<(Duration, u64), Item>,
    device: Device,
    users: Vec<User>,
    /// What is not done: whose it is, what it is, and since when.
    open: BTreeMap<u64, (usize, Request, Duration)>,
    turns: BTreeMap<u64, (Vec<u64>, Duration)>,
    disk_until: Duration,
    /// What an operation and a mebibyte take.
    operation: Duration,
    mebibyte: Duration,
    summary: DiskSummary,
}

/// Runs it, and says whether all got what is theirs.
///
/// # Errors
/// What is wrong, for people.
pub fn simulate_disk(disks: Disks, seed: u64) -> Result<DiskSummary, String> {
    run(disks, seed)?.judge()
}

/// Runs it, and counts.
///
/// # Errors
/// An invariant is broken.
pub fn count_disk(disks: Disks, seed: u64) -> Result<DiskSummary, String> {
    Ok(run(disks, seed)?.summary)
}

fn run(disks: Disks, seed: u64) -> Result<World, String> {
    let mut world = World::new(disks, seed);
    for index in 0..world.users.len() {
        for _ in 0..world.users[index].depth {
            world.schedule(Duration::ZERO, Item::Ask(index));
        }
    }
    let mut events: u64 = 0;
    while let Some(((at, _), item)) = world.agenda.pop_first() {
        world.now = at;
        match item {
            Item::Ask(index) => world.ask(index)?,
            Item::Done(turn) => world.done(turn)?,
        }
        events += 1;
        if events.is_multiple_of(EACH) {
            world.device.check().map_err(|broken| broken.to_string())?;
        }
        if world.now >= END && world.summary.read_latency.is_zero() {
            let standing = world.device.standing();
            world.summary.read_latency = standing.read_latency;
            world.summary.limited.1 = standing.is_limiting;
        }
    }
    Ok(world)
}

impl World {
    fn new(disks: Disks, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let is_rotational = disks == Disks::Sweep || random.chance(50);
        let (operation, mebibyte) = match is_rotational {
            true => (random.micros(4_000, 12_000), random.micros(5_000, 20_000)),
            false => (random.micros(100, 2_000), random.micros(500, 5_000)),
        };
        let (operation, mebibyte) = match disks {
            Disks::Crowd => (random.micros(900, 1_100), Duration::from_millis(5)),
            _ => (operation, mebibyte),
        };
        let users = users(disks, &mut random);
        let mut options = DeviceOptions::new(&Config::default(), is_rotational);
        if disks == Disks::Shared {
            // All want all, always.
            options.read_latency = Duration::MAX;
        }
        Self {
            disks,
            summary: DiskSummary {
                served: vec![Duration::ZERO; users.len() - 1],
                ..DiskSummary::default()
            },
            users,
            random,
            now: Duration::ZERO,
            number: 0,
            agenda: BTreeMap::new(),
            device: Device::new(options),
            open: BTreeMap::new(),
            turns: BTreeMap::new(),
            disk_until: Duration::ZERO,
            operation,
            mebibyte,
        }
    }

    fn schedule(&mut self, delay: Duration, item: Item) {
        self.number += 1;
        self.agenda.insert((self.now + delay, self.number), item);
    }

    fn ask(&mut self, index: usize) -> Result<(), String> {
        if self.now >= END {
            return Ok(());
        }
        let user = &mut self.users[index];
        if let Some(period) = user.period {
            self.schedule(period, Item::Ask(index));
        } else if user.most.is_some_and(|most| user.open >= most as usize) {
            // It is told to pause.
            let pause = self.random.micros(10_000, 100_000);
            self.schedule(pause, Item::Ask(index));
            return Ok(());
        }
        let user = &mut self.users[index];
        let bytes = self.random.between(user.bytes.0, user.bytes.1);
        let (file, offset) = match (user.follows, user.access) {
            (false, Access::Read) => (self.random.below(64), self.random.below(64 << 20)),
            _ => (100 + index as u64, user.next),
        };
        user.next = offset.saturating_add(bytes);
        user.open += 1;
        self.number += 1;
        let request = Request {
            number: self.number,
            tenant: user.tenant,
            access: user.access,
            file,
            offset,
            bytes,
        };
        self.open.insert(self.number, (index, request, self.now));
        self.device(DeviceEvent::Asked(request))
    }

    fn device(&mut self, event: DeviceEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let handled = self.device.handle(event, self.now, &mut effects);
        handled.map_err(|error| error.to_string())?;
        for effect in effects {
            match effect {
                DeviceEffect::Begin { turn, requests } => self.begin(turn, requests)?,
                DeviceEffect::Refuse(number) => return Err(format!("{number} is refused")),
                DeviceEffect::Limits(limits) => {
                    self.summary.limited.0 |= !limits.is_empty();
                    for user in &mut self.users {
                        let of_it = |limit: &&Limit| limit.application == user.tenant.application;
                        user.most = limits.iter().find(of_it).map(|limit| limit.most);
                    }
                }
            }
        }
        Ok(())
    }

    /// The disk does one turn after the other: an operation for each place, and its bytes.
    fn begin(&mut self, turn: u64, requests: Vec<u64>) -> Result<(), String> {
        let mut operations = 0;
        let mut bytes = 0;
        let mut last = None;
        for number in &requests {
            let open = self.open.get(number);
            let (_, request, _) = open.ok_or("what nobody has asked for has begun")?;
            operations += u32::from(last != Some((request.file, request.offset)));
            bytes += request.bytes;
            last = Some((request.file, request.offset + request.bytes));
        }
        let of_bytes = self.mebibyte.as_secs_f64() * bytes as f64 / f64::from(1 << 20);
        let took = self.operation * operations + Duration::from_secs_f64(of_bytes);
        let took = took * self.random.between(80, 120) as u32 / 100;
        self.disk_until = self.disk_until.max(self.now) + took;
        self.turns.insert(turn, (requests, took));
        self.schedule(self.disk_until - self.now, Item::Done(turn));
        Ok(())
    }

    fn done(&mut self, turn: u64) -> Result<(), String> {
        let turns = self.turns.remove(&turn);
        let (requests, took) = turns.ok_or("a turn is done twice")?;
        let mut of = None;
        for number in requests {
            let open = self.open.remove(&number);
            let (index, _, since) = open.ok_or("a request is done twice")?;
            let user = &mut self.users[index];
            user.open -= 1;
            if user.period.is_none() {
                if (MEASURED..END).contains(&self.now) {
                    self.summary.done += 1;
                    self.summary.late += u64::from(self.now - since > LONG);
                }
                self.schedule(Duration::ZERO, Item::Ask(index));
            } else if since >= MEASURED {
                self.summary.modest = self.summary.modest.max(self.now - since);
            }
            of = Some(index);
        }
        if let Some(served) = of.and_then(|of| self.summary.served.get_mut(of))
            && (MEASURED..END).contains(&self.now)
        {
            *served += took;
        }
        self.device(DeviceEvent::Done {
            turn,
            outcome: Outcome::Done,
        })
    }

    fn judge(mut self) -> Result<DiskSummary, String> {
        if !(self.open.is_empty() && self.device.is_idle()) {
            return Err(format!("{} requests are never done", self.open.len()));
        }
        let summary = std::mem::take(&mut self.summary);
        // What is under way when it asks, and the turns of the others.
        let turn = self.mebibyte * 5 + self.operation * 2;
        let most = turn * (4 + 2 * self.users.len() as u32);
        match self.disks {
            Disks::Shared => self.judge_shares(&summary)?,
            Disks::Sweep => {}
            Disks::Crowd if summary.read_latency > Duration::from_millis(400) => {
                return Err(format!("reads take too long in the end: {summary:?}"));
            }
            Disks::Crowd => {}
        }
        let most = match self.disks {
            Disks::Sweep => Duration::from_secs(3),
            Disks::Shared | Disks::Crowd => most,
        };
        if summary.modest > most {
            return Err(format!(
                "who wants little waits for more than {most:?}: {summary:?}"
            ));
        }
        Ok(summary)
    }

    /// Those that want all have shares of the disk's time by their priorities.
    fn judge_shares(&self, summary: &DiskSummary) -> Result<(), String> {
        let all: Duration = summary.served.iter().sum();
        let priorities = self.users.iter().map(|user| user.tenant.priority);
        let weights: u32 = priorities.take(summary.served.len()).sum();
        for (served, user) in summary.served.iter().zip(&self.users) {
            let share = all * user.tenant.priority / weights;
            if served.abs_diff(share) * 4 > share {
                return Err(format!(
                    "{user:?} has another share than its priority says: {served:?} and not {share:?} of {all:?}, of a \
                     disk with {:?} for an operation and {:?} for a mebibyte: {:?}",
                    self.operation,
                    self.mebibyte,
                    self.device.standing(),
                ));
            }
        }
        Ok(())
    }
}

/// Those that want all, and the one that wants little, last.
fn users(disks: Disks, random: &mut Random) -> Vec<User> {
    const KIB: u64 = 1 << 10;
    let greedy = User {
        tenant: Tenant::default(),
        access: Access::Read,
        bytes: (4 * KIB, 60 * KIB),
        depth: 64,
        follows: false,
        period: None,
        next: 0,
        open: 0,
        most: None,
    };
    let mut users = Vec::new();
    match disks {
        Disks::Shared => {
            for _ in 0..random.between(2, 4) {
                let mut user = greedy.clone();
                user.tenant.priority = random.between(1, 3) as u32;
                match random.below(5) {
                    0 => {}
                    1 => (user.bytes, user.depth) = ((2_048 * KIB, 4_096 * KIB), 16),
                    2 => user.bytes = (128 * KIB, 900 * KIB),
                    // More than a turn: otherwise it does not want all.
                    3 => (user.follows, user.depth) = (true, 512),
                    _ => {
                        user.access = Access::Write;
                        (user.bytes, user.depth) = ((1_024 * KIB, 4_096 * KIB), 8);
                    }
                }
                users.push(user);
            }
        }
        Disks::Sweep => users.push(User {
            follows: true,
            ..greedy.clone()
        }),
        Disks::Crowd => {
            for _ in 0..2 {
                users.push(User {
                    depth: 512,
                    ..greedy.clone()
                });
            }
        }
    }
    let period = match disks {
        Disks::Sweep => Duration::from_secs(2),
        Disks::Shared | Disks::Crowd => random.micros(200_000, 500_000),
    };
    let mut modest = User {
        depth: 1,
        period: Some(period),
        ..greedy
    };
    if disks == Disks::Shared {
        modest.tenant.priority = 3;
    }
    users.push(modest);
    for (user, number) in users.iter_mut().zip(0..) {
        // In a sweep the reads elsewhere are of the same application.
        let number = if disks == Disks::Sweep { 0 } else { number };
        user.tenant.application = ApplicationId(number);
    }
    users
}
