//! Servers of four kinds: what they take in a second is as 1, 1/2, 1/4 and 1/10. One shuffle follows another. Master,
//! servers and writer are the production cores; a link does so many bytes a second.
//!
//! In the middle of it the slowest servers become the fastest, and the other way round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_shuffle::block::{Header, Table, TableBuilder};
use treadle_shuffle::{
    AttemptId, BatchId, Config, ConnectionId, FromServer, Gathered, GroupId, Intake, LinkId,
    Master, MasterEffect, MasterEvent, Plan, Push, Server, ServerEffect, ServerEvent, ServerId,
    ShuffleId, Spec, Standing, Tally, Tenant, ToMaster, ToNode, ToServer, Transfer, Writer,
    WriterEffect, WriterEvent,
};
use treadle_types::Runs;

use treadle_sim_kernel::Random;

/// Servers, of each kind two, in as many failure domains.
const SERVERS: u32 = 8;
const PARTITIONS: u32 = 192;
const MAPS: u32 = 40;
/// Bytes of a map for a partition.
const SIZE: u64 = 16 << 10;
/// Maps that run at once.
const DEPTH: u32 = 6;
/// Bytes that the fastest take in a second, and parts of it.
const RATE: u64 = 40 << 20;
const KINDS: [u64; SERVERS as usize] = [1, 1, 2, 2, 4, 4, 10, 10];
/// Shuffles, after how many the servers are others, and how many it takes at most until their rates are known.
const ROUNDS: u32 = 24;
const CHANGE: u32 = 12;
const LEARN: u32 = 6;
/// How much of the sum of the rates is to be used, in percent.
const BAR: u64 = 85;
const CLIENT: ServerId = ServerId {
    node: 100,
    incarnation: 1,
};
const FROM: ConnectionId = ConnectionId(1);

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Weighed {
    /// How much of the sum of the servers' rates each shuffle used, in percent.
    pub used: Vec<u64>,
}

enum Item {
    Begin(u32),
    ToServer(u32, ToServer),
    ToWriter(u32, FromServer),
    Arrived(u32, Push),
    Tick,
}

struct World {
    random: Random,
    now: Duration,
    number: u64,
    agenda: BTreeMap<(Duration, u64), Item>,
    tick: Option<Duration>,
    /// Bytes a second, and until when each link is busy.
    rates: Vec<u64>,
    busy: Vec<Duration>,
    master: Master,
    servers: Vec<Server>,
    writer: Writer,
    shuffle: ShuffleId,
    plan: Option<Plan>,
    next: u32,
    done: u32,
    /// How many partitions each server was given in the first plan of each shuffle.
    given: Vec<Vec<u64>>,
}

/// Runs it, and says whether the servers were used.
///
/// # Errors
/// What was not as it should be, for people.
pub fn simulate_weights(seed: u64) -> Result<Weighed, String> {
    let mut world = World::new(seed)?;
    let mut result = Weighed::default();
    for round in 0..ROUNDS {
        if round == CHANGE {
            for rate in &mut world.rates {
                // 1 and 1/10 change places, and so do 1/2 and 1/4.
                let other = match RATE / *rate {
                    1 => 10,
                    2 => 4,
                    4 => 2,
                    _ => 1,
                };
                *rate = RATE / other;
            }
        }
        let used = world.round(round)?;
        result.used.push(used);
        if round % CHANGE >= LEARN && used < BAR {
            let (rates, given) = (&world.rates, world.given.last());
            let said: Vec<_> = world.servers.iter().map(|it| it.intake().rate).collect();
            return Err(format!(
                "a shuffle takes too long: {used} % of what servers take is used, {result:?}; servers that take \
                 {rates:?} were given {given:?} partitions, and say {said:?}"
            ));
        }
    }
    world.judge(&result)?;
    Ok(result)
}

fn server(node: u32) -> ServerId {
    ServerId {
        node,
        incarnation: 1,
    }
}

fn batch(shuffle: ShuffleId, group: GroupId, id: BatchId, partitions: &Runs) -> (Header, Table) {
    let mut builder = TableBuilder::new(shuffle, group.epoch, id, 8);
    for partition in partitions.iter() {
        let tally = Tally {
            rows: SIZE / 8,
            bytes: SIZE,
            digest: u64::from(id.map) + partition + 1,
        };
        builder.push(partition as u32, &tally);
    }
    builder.finish().expect("pieces are in order")
}

impl World {
    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let mut rates: Vec<u64> = KINDS.iter().map(|part| RATE / part).collect();
        for at in (1..rates.len()).rev() {
            rates.swap(at, random.index(at + 1));
        }
        let config = Config {
            least_window: 1 << 20,
            ..Config::default()
        };
        let mut world = Self {
            random,
            now: Duration::ZERO,
            number: 0,
            agenda: BTreeMap::new(),
            tick: None,
            rates,
            busy: vec![Duration::ZERO; SERVERS as usize],
            master: Master::new(config.clone()),
            servers: (0..SERVERS)
                .map(|node| Server::new(server(node), config.clone()))
                .collect(),
            writer: Writer::new(config),
            shuffle: ShuffleId(0),
            plan: None,
            next: 0,
            done: 0,
            given: Vec::new(),
        };
        for node in 0..SERVERS {
            let (target, limit) = (u64::MAX / 2, u64::MAX / 2);
            world.serve(node, ServerEvent::Budget { target, limit })?;
            world.announce(node)?;
        }
        let standing = Standing {
            domain: CLIENT.node,
            weight: 0,
            intake: Intake::default(),
            store: 0,
        };
        let server = CLIENT;
        world.lead(MasterEvent::Standing { server, standing })?;
        Ok(world)
    }

    /// A server says what it takes.
    fn announce(&mut self, node: u32) -> Result<(), String> {
        let standing = Standing {
            domain: node,
            weight: 1_000,
            intake: self.servers[node as usize].intake(),
            store: 0,
        };
        let server = server(node);
        self.lead(MasterEvent::Standing { server, standing })
    }

    /// One shuffle: how much of the sum of the rates it used, in percent.
    fn round(&mut self, round: u32) -> Result<u64, String> {
        self.shuffle = ShuffleId(u64::from(round) + 1);
        (self.plan, self.next, self.done) = (None, 0, 0);
        let spec = Spec {
            tenant: Tenant::default(),
            maps: MAPS,
            partitions: PARTITIONS,
            outputs: Runs::range(0, PARTITIONS.into()),
            aligned: None,
            copies: 2,
            is_handed_over: true,
            expected: 0,
            preferred: Vec::new(),
            committed: None,
        };
        let shuffle = self.shuffle;
        self.lead(MasterEvent::Register { shuffle, spec })?;
        let begin = self.now;
        for _ in 0..DEPTH {
            self.begin_next();
        }
        while self.done < MAPS {
            let next = self.agenda.pop_first();
            let ((at, _), item) = next.ok_or("nothing happens any more")?;
            self.now = at;
            self.step(item)?;
        }
        let took = self.now - begin;
        self.lead(MasterEvent::End(shuffle))?;
        for node in 0..SERVERS {
            self.announce(node)?;
        }
        // What is on its way is of no use any more.
        self.agenda.clear();
        self.tick = None;
        self.now += Duration::from_secs(1);
        let bytes = 2 * SIZE * u64::from(PARTITIONS) * u64::from(MAPS);
        let all: u64 = self.rates.iter().sum();
        Ok((u128::from(bytes) * 100_000_000_000 / u128::from(all) / took.as_nanos()) as u64)
    }

    /// Shares change while they are learned only.
    fn judge(&self, result: &Weighed) -> Result<(), String> {
        for (round, pair) in self.given.windows(2).enumerate() {
            let is_learning = (round as u32 + 1) % CHANGE < LEARN;
            let moved = pair[0].iter().zip(&pair[1]);
            let moved: u64 = moved.map(|(&before, &now)| before.abs_diff(now)).sum();
            if !is_learning && moved * 5 > u64::from(PARTITIONS) {
                let given = &self.given;
                return Err(format!("shares go to and fro: {given:?}, {result:?}"));
            }
        }
        Ok(())
    }

    fn schedule(&mut self, delay: Duration, item: Item) {
        self.number += 1;
        self.agenda.insert((self.now + delay, self.number), item);
    }

    fn send(&mut self, item: Item) {
        let latency = self.random.micros(50, 150);
        self.schedule(latency, item);
    }

    fn begin_next(&mut self) {
        if self.next < MAPS {
            self.schedule(Duration::ZERO, Item::Begin(self.next));
            self.next += 1;
        }
    }

    fn step(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Begin(map) => {
                let transfer = Transfer {
                    shuffle: self.shuffle,
                    map,
                    attempt: AttemptId(1),
                };
                self.write(WriterEvent::Begin {
                    transfer,
                    again: false,
                    replaces: true,
                })
            }
            Item::ToServer(node, message) => {
                let from = FROM;
                self.serve(node, ServerEvent::Message { from, message })
            }
            Item::ToWriter(node, message) => {
                let from = server(node);
                self.write(WriterEvent::Server { from, message })
            }
            Item::Arrived(node, push) => {
                let plan = self.plan.as_ref().ok_or("there is no plan")?;
                let group = plan.group_of_copy(push.group).ok_or("there is no group")?;
                let (_, table) = batch(push.shuffle, push.group, push.batch, &group.partitions);
                let (from, table) = (FROM, Some(table));
                self.serve(node, ServerEvent::Arrived { from, push, table })
            }
            Item::Tick if self.tick != Some(self.now) => Ok(()),
            Item::Tick => {
                self.tick = None;
                // Servers say what they take all the time.
                (0..SERVERS).try_for_each(|node| self.announce(node))?;
                self.write(WriterEvent::Tick)
            }
        }
    }

    fn lead(&mut self, event: MasterEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let handled = self.master.handle(event, &mut effects);
        handled.map_err(|error| error.to_string())?;
        self.master.check().map_err(|broken| broken.to_string())?;
        for effect in effects {
            let MasterEffect::Send { to, message } = effect else {
                continue;
            };
            match to {
                CLIENT => {
                    if let ToNode::Plan(plan) = &message {
                        self.planned(plan)?;
                    }
                    self.write(WriterEvent::Master(message))?;
                }
                _ => {
                    let link = LinkId::ONLY;
                    self.serve(to.node, ServerEvent::Master { link, message })?;
                }
            }
        }
        Ok(())
    }

    fn planned(&mut self, plan: &Plan) -> Result<(), String> {
        let mut given = vec![0; SERVERS as usize];
        for group in plan.groups.iter().filter(|group| group.is_open) {
            let apart: BTreeSet<ServerId> = group.copies.iter().copied().collect();
            if apart.len() != 2 {
                return Err(format!("copies are not apart: {group:?}"));
            }
            for copy in &group.copies {
                given[copy.node as usize] += group.partitions.len();
            }
        }
        if self.plan.is_none() {
            self.given.push(given);
        }
        self.plan = Some(plan.clone());
        Ok(())
    }

    fn serve(&mut self, node: u32, event: ServerEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let server = &mut self.servers[node as usize];
        let handled = server.handle(event, self.now, &mut effects);
        handled.map_err(|error| error.to_string())?;
        for effect in effects {
            match effect {
                ServerEffect::Reply { message, .. } => self.send(Item::ToWriter(node, message)),
                ServerEffect::Admit { push, .. } => {
                    let rate = self.rates[node as usize];
                    let time = push.length * 1_000_000_000 / rate;
                    // As evenly as networks do.
                    let time = time * (80 + self.random.below(41)) / 100;
                    let busy = &mut self.busy[node as usize];
                    *busy = (*busy).max(self.now) + Duration::from_nanos(time);
                    let delay = *busy - self.now;
                    self.schedule(delay, Item::Arrived(node, push));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&mut self, event: WriterEvent) -> Result<(), String> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut effects = Vec::new();
            let handled = self.writer.handle(event, self.now, &mut effects);
            handled.map_err(|error| error.to_string())?;
            let mut reports = Vec::new();
            for effect in effects {
                match effect {
                    WriterEffect::Gather {
                        transfer,
                        group,
                        partitions,
                    } => {
                        let (header, _) =
                            batch(transfer.shuffle, group, transfer.batch(0), &partitions);
                        let batches = vec![(header.tally, header.length())];
                        events.push(WriterEvent::Gathered {
                            transfer,
                            group,
                            gathered: Gathered { batches },
                        });
                    }
                    WriterEffect::Send { to, message } => {
                        self.send(Item::ToServer(to.node, message));
                    }
                    WriterEffect::Done(_) => {
                        self.done += 1;
                        self.begin_next();
                    }
                    WriterEffect::Failed { error, .. } => return Err(error.to_string()),
                    WriterEffect::Report(message) => reports.push(message),
                    WriterEffect::Free { .. } => {}
                }
            }
            for message in reports {
                self.report(message)?;
            }
        }
        if let Some(due) = self.writer.next_deadline() {
            let at = due.max(self.now + Duration::from_micros(1));
            if self.tick.is_none_or(|next| at < next) {
                self.tick = Some(at);
                self.schedule(at - self.now, Item::Tick);
            }
        }
        Ok(())
    }

    fn report(&mut self, message: ToMaster) -> Result<(), String> {
        let from = CLIENT;
        self.lead(MasterEvent::Message { from, message })
    }
}
