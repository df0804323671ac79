//! The world: processes, the registry between them, and what must hold.

mod faults;
mod links;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use treadle_shuffle_registry::{
    Config, Entry, Key, Load, News, RegisteringEffect, RegisteringEvent, Standing, WatchingEffect,
    WatchingEvent,
};
use treadle_sim_kernel::{Kernel, Random, Trace, World as _, counters};

use crate::master::Master;
use crate::plan::{self, END, Fault, MASTERS, NAMES};
use crate::registry::Registry;
use crate::server::Server;

/// How often a client says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A list may be called current so long after the registry has gone: a heartbeat, and an answer under way.
const UNNOTICED: Duration = Duration::from_secs(3);

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Who {
    Server(usize),
    Master(usize),
}

/// A client's side of its session.
#[derive(Default)]
pub(crate) struct Link {
    session: Option<u64>,
    /// One that was given up, and may have a node still.
    before: Option<u64>,
    is_connected: bool,
    /// Answers to an earlier session change nothing.
    epoch: u64,
    /// When the machine is called next.
    tick: Option<Duration>,
}

/// What is asked of the registry.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Connect,
    List,
    Rivals(String),
    Write(Arc<Entry>),
    Remove(Key),
}

/// What comes to a process.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Server(RegisteringEvent),
    Master(WatchingEvent),
    Connected(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Item {
    Ask(Who, u64, Ask),
    Event(Who, u64, Event),
    Tick(Who),
    Heartbeat(Who),
    /// The registry looks for sessions that have ended.
    Expire,
    Read(usize),
    Fault(u64, Fault),
    Start(u64),
    Kill(usize),
    /// Each life of a name ends, and another begins.
    Flap(u64, u64),
    Up(bool),
}

impl treadle_sim_kernel::Item for Item {
    fn is_periodic(&self) -> bool {
        matches!(self, Self::Heartbeat(_) | Self::Expire | Self::Read(_))
    }
}

counters! {
    /// What has happened.
    #[allow(unreachable_pub, reason = "the macro is for crates")]
    pub struct Summary {
        pub outages: u64,
        pub wiped: u64,
        pub cuts: u64,
        pub pauses: u64,
        pub restarts: u64,
        pub duplicates: u64,
        pub superseded: u64,
        pub withdrawn: u64,
        pub flapping: u64,
        pub held_back: u64,
        pub joined: u64,
        pub left: u64,
        pub stale: u64,
    }
}

struct World {
    kernel: Kernel<Item, Who>,
    config: Config,
    registry: Registry,
    servers: Vec<Server>,
    masters: Vec<Master>,
    incarnation: u64,
    cut_until: BTreeMap<Who, Duration>,
    /// When the last pause of a process ends.
    paused_until: BTreeMap<Who, Duration>,
    /// A session that was given up is kept alive until the next one has written.
    keeps: bool,
    summary: Summary,
}

/// Runs a seed to its end.
pub(crate) fn simulate(seed: u64, trace: Trace) -> Result<Summary, String> {
    let mut random = Random::new(seed);
    let faults = plan::draw(&mut random);
    let mut world = World {
        kernel: Kernel::new(random, trace),
        config: Config::default(),
        registry: Registry::default(),
        servers: Vec::new(),
        masters: Vec::new(),
        incarnation: 0,
        cut_until: BTreeMap::new(),
        paused_until: BTreeMap::new(),
        keeps: seed.is_multiple_of(2),
        summary: Summary::default(),
    };
    for name in 0..NAMES {
        world
            .kernel
            .schedule(Duration::from_secs(name), Item::Start(name));
    }
    for number in 0..MASTERS {
        let seed = world.kernel.random.next();
        world.masters.push(Master::new(&world.config, seed));
        world.begin(Who::Master(number));
        world.kernel.schedule(HEARTBEAT, Item::Read(number));
    }
    world.registry.start(false, Duration::ZERO);
    world.kernel.schedule(HEARTBEAT, Item::Expire);
    for (at, drawn, fault) in faults {
        world.kernel.schedule(at, Item::Fault(drawn, fault));
    }
    world.simulate(|world| world.run().and_then(|_| world.is_well()))?;
    Ok(world.summary)
}

impl treadle_sim_kernel::World for World {
    type Item = Item;
    type Node = Who;
    const LIMIT: (Duration, u64) = (Duration::from_secs(10_000), 1_000_000);

    fn kernel(&self) -> &Kernel<Item, Who> {
        &self.kernel
    }

    fn kernel_mut(&mut self) -> &mut Kernel<Item, Who> {
        &mut self.kernel
    }

    fn process(&self, item: &Item) -> Option<Who> {
        match item {
            Item::Event(who, ..) | Item::Tick(who) | Item::Heartbeat(who) => Some(*who),
            _ => None,
        }
    }

    fn is_over(&mut self) -> bool {
        self.kernel.now() > END
    }

    fn step(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Ask(who, epoch, ask) => self.asked(who, epoch, ask),
            Item::Event(who, epoch, event) => {
                if epoch == self.link(who).epoch {
                    self.happens(who, event)?;
                }
            }
            Item::Tick(who) => {
                let now = self.kernel.now();
                if self.link(who).tick.take_if(|at| *at <= now).is_some() {
                    self.tick(who)?;
                }
            }
            Item::Heartbeat(who) => self.heartbeat(who)?,
            Item::Expire => {
                if self.registry.is_up {
                    let gone = self.registry.expire(self.config.session, self.kernel.now());
                    self.publish(gone);
                }
                self.kernel.schedule(Duration::from_secs(1), Item::Expire);
            }
            Item::Read(number) => {
                let now = self.kernel.now();
                if self.kernel.paused_until(Who::Master(number)).is_none() {
                    self.masters[number].read(now)?;
                }
                let pause = self.kernel.random.micros(1_000, 5_000_000);
                self.kernel.schedule(pause, Item::Read(number));
            }
            Item::Fault(drawn, fault) => self.fault(drawn, fault)?,
            Item::Start(name) => self.start(name),
            Item::Kill(server) => self.kill(server),
            Item::Flap(name, times) => self.flap(name, times),
            Item::Up(forgets) => self.registry.start(forgets, self.kernel.now()),
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let now = self.kernel.now();
        let is_down = !self.registry.is_up && self.registry.down_since + UNNOTICED < now;
        for (number, master) in self.masters.iter().enumerate() {
            let paused = self.paused_until.get(&Who::Master(number));
            let is_awake = paused.is_none_or(|until| *until + UNNOTICED < now);
            if is_down && is_awake && master.machine.list(now).age.is_none() {
                return Err(format!(
                    "the list of master {number} is called current, and there is no registry"
                ));
            }
        }
        Ok(())
    }
}

impl World {
    fn begin(&mut self, who: Who) {
        self.link(who).tick = Some(self.kernel.now());
        self.kernel.schedule(Duration::ZERO, Item::Tick(who));
        let pause = self.kernel.random.micros(0, 2_000_000);
        self.kernel.schedule(pause, Item::Heartbeat(who));
    }

    /// Something comes to a process.
    fn happens(&mut self, who: Who, event: Event) -> Result<(), String> {
        match (who, event) {
            (_, Event::Connected(session)) => {
                let link = self.link(who);
                link.session = Some(session);
                link.is_connected = true;
                match who {
                    Who::Server(_) => self.happens(who, Event::Server(RegisteringEvent::Connected)),
                    Who::Master(_) => self.happens(who, Event::Master(WatchingEvent::Connected)),
                }
            }
            (Who::Server(server), Event::Server(event)) => self.server(server, event),
            (Who::Master(master), Event::Master(event)) => self.master(master, event),
            (who, event) => Err(format!("{event:?} came to {who:?}")),
        }
    }

    fn tick(&mut self, who: Who) -> Result<(), String> {
        let event = match who {
            Who::Server(_) => Event::Server(RegisteringEvent::Tick),
            Who::Master(_) => Event::Master(WatchingEvent::Tick),
        };
        self.happens(who, event)
    }

    /// Notes when a machine is called next.
    fn schedule(&mut self, who: Who, deadline: Option<Duration>) {
        if self.link(who).tick != deadline {
            self.link(who).tick = deadline;
            if let Some(at) = deadline {
                self.kernel.schedule_at(at, Item::Tick(who));
            }
        }
    }

    fn server(&mut self, number: usize, event: RegisteringEvent) -> Result<(), String> {
        if !self.servers[number].is_alive {
            return Ok(());
        }
        let (who, now) = (Who::Server(number), self.kernel.now());
        let server = &mut self.servers[number];
        let before = server.machine.standing().clone();
        let is_written = event == RegisteringEvent::Written;
        let mut effects = Vec::new();
        server.machine.handle(event, now, &mut effects);
        server.machine.check()?;
        match server.machine.standing() {
            standing if *standing == before => {}
            Standing::Registered => server.registered_at = Some(now),
            Standing::Superseded(_) => self.summary.superseded += 1,
            Standing::Withdrawn => self.summary.withdrawn += 1,
            _ => {}
        }
        let (deadline, key) = (server.machine.deadline(), server.entry.key());
        for effect in effects {
            match effect {
                RegisteringEffect::Connect => {
                    self.put_aside(who);
                    self.ask(who, Ask::Connect);
                }
                RegisteringEffect::ReadRivals => self.ask(who, Ask::Rivals(key.name.clone())),
                RegisteringEffect::Write(entry) => self.ask(who, Ask::Write(Arc::new(*entry))),
                RegisteringEffect::RemoveRival(incarnation) => {
                    let name = key.name.clone();
                    self.ask(who, Ask::Remove(Key { name, incarnation }));
                }
                RegisteringEffect::Remove => self.ask(who, Ask::Remove(key.clone())),
                RegisteringEffect::Close => {
                    self.close(who);
                    self.put_aside(who);
                    self.close(who);
                }
            }
        }
        if is_written {
            self.close(who);
        }
        self.schedule(who, deadline);
        Ok(())
    }

    fn master(&mut self, number: usize, event: WatchingEvent) -> Result<(), String> {
        let (who, now) = (Who::Master(number), self.kernel.now());
        let master = &mut self.masters[number];
        let mut effects = Vec::new();
        master.machine.handle(event, now, &mut effects);
        master.machine.check()?;
        let deadline = master.machine.deadline();
        for effect in effects {
            match effect {
                WatchingEffect::Connect => {
                    self.put_aside(who);
                    self.close(who);
                    self.ask(who, Ask::Connect);
                }
                WatchingEffect::Read => self.ask(who, Ask::List),
                WatchingEffect::Tell(news) => self.told(number, news)?,
            }
        }
        self.schedule(who, deadline);
        Ok(())
    }

    fn told(&mut self, number: usize, news: News) -> Result<(), String> {
        match &news {
            News::Joined(entry) => {
                self.summary.joined += 1;
                let nodes = self.registry.list().into_iter();
                let mut lives = nodes.filter(|other| other.name == entry.name);
                // What the registry was told a moment ago, the master does not know yet.
                let is_settled = |other: &Arc<Entry>| {
                    let server = &self.servers[other.incarnation as usize - 1];
                    server
                        .registered_at
                        .is_some_and(|at| at + UNNOTICED < self.kernel.now())
                };
                let is_current = self.masters[number]
                    .machine
                    .list(self.kernel.now())
                    .age
                    .is_none();
                if is_current
                    && lives
                        .any(|other| other.incarnation > entry.incarnation && is_settled(&other))
                {
                    return Err(format!("{} is listed, and has a later one", entry.key()));
                }
            }
            News::HeldBack { .. } => self.summary.held_back += 1,
            News::Stale(_) => self.summary.stale += 1,
            News::Left(key) => {
                self.summary.left += 1;
                let server = self
                    .servers
                    .iter()
                    .find(|server| server.entry.key() == *key);
                let server = server.ok_or("a server has left that never was")?;
                if server.is_alive && server.is_healthy {
                    return Err(format!("{key} is healthy, and has left"));
                }
            }
            _ => {}
        }
        self.masters[number].hear(news, self.kernel.now())
    }

    /// A server has another load.
    fn refresh(&mut self, number: usize) -> Result<(), String> {
        let load = Load {
            free: self.kernel.random.below(1 << 40),
            held: self.kernel.random.below(1 << 40),
            ..Load::default()
        };
        self.servers[number].entry.load = Some(load);
        self.server(number, RegisteringEvent::Refresh(load))
    }

    /// At the end each master lists the latest life of each name, as it is.
    fn is_well(&mut self) -> Result<(), String> {
        let mut expected: BTreeMap<String, &Server> = BTreeMap::new();
        for server in self
            .servers
            .iter()
            .filter(|server| server.should_be_listed())
        {
            // Lives are in the order of their incarnations.
            if let Some(earlier) = expected.insert(server.entry.name.clone(), server) {
                let standing = earlier.machine.standing();
                return Err(format!("{} stands as {standing:?}", earlier.entry.key()));
            }
        }
        let now = self.kernel.now();
        for (number, master) in self.masters.iter_mut().enumerate() {
            master.read(now)?;
            let list = master.machine.list(now);
            let listed = list.entries.iter().map(|entry| (**entry).clone());
            let right = expected.values().map(|server| server.entry.clone());
            if list.age.is_some() || !listed.eq(right) {
                let keys = |entries: &mut dyn Iterator<Item = Key>| {
                    let keys: Vec<_> = entries.map(|key| key.to_string()).collect();
                    keys.join(", ")
                };
                return Err(format!(
                    "master {number} lists {} and not {}; {:?}",
                    keys(&mut list.entries.iter().map(|entry| entry.key())),
                    keys(&mut expected.values().map(|server| server.entry.key())),
                    list.why,
                ));
            }
        }
        Ok(())
    }
}
