//! A server that is asked for more than it can do: four applications want all of it, with priorities of
//! 1 and 3, and a modest one wants little. Server, writers and readers are the production cores; the disk
//! does so many bytes a second.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_shuffle::block::{Header, Table, TableBuilder};
use treadle_shuffle::{
    Access, ApplicationId, AttemptId, BatchId, Config, ConnectionId, Device, DeviceEffect,
    DeviceEvent, DeviceOptions, Expected, FromServer, Gathered, Generation, Group, GroupId, LinkId,
    Outcome, Plan, Push, ReadPiece, Reader, ReaderEffect, ReaderEvent, Refusal, Request, Seal,
    Server, ServerEffect, ServerEvent, ServerId, ShuffleId, Tally, Tenant, ToNode, ToSend,
    ToServer, Transfer, Writer, WriterEffect, WriterEvent,
};
use treadle_types::Runs;

use treadle_sim_kernel::Random;

/// What is too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Rows are pushed faster than they can be written.
    Pushes,
    /// Rows are read faster than the disk reads.
    Reads,
}

/// What came of it, by application: the four that want everything, and the modest one.
#[derive(Clone, Debug, Default)]
pub struct Overload {
    /// Requests that were served while there was too much to do.
    pub served: [u64; 5],
    /// How often each was told to pause.
    pub slept: [u64; 5],
    /// The longest that a request of the modest one took: before the load, under it, and ten seconds
    /// after it.
    pub latency: [Duration; 3],
}

/// Bytes that the disk does in a second.
const RATE: u64 = 4 << 20;
/// Bytes of the rows of a request.
const SIZE: u64 = 4096;
const PARTITIONS: u32 = 32;
/// Requests that each of the four has under way, if it may.
const DEPTH: usize = 64;
const MODEST: usize = 4;
const GENERATION: Generation = Generation(1);
/// When the four begin and end, when their shares are measured, and when the modest one ends.
const LOADED: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
const MEASURED: Duration = Duration::from_secs(4);
const NORMAL: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(24);
/// The modest one asks so often: for a fifth of its share.
const PERIOD: Duration = Duration::from_millis(50);
const SERVER: ServerId = ServerId {
    node: 1,
    incarnation: 1,
};

enum Item {
    Begin(usize),
    Asked(usize, ToServer),
    Answered(usize, FromServer),
    Arrived(usize, Push),
    Written(u64),
    /// A turn of the disk is over.
    Loaded(u64, Vec<u64>),
    Sent(u64),
    Tick(Option<usize>),
}

struct Client {
    tenant: Tenant,
    shuffle: ShuffleId,
    writer: Writer,
    reader: Reader,
    next: u32,
    /// When requests began.
    begun: BTreeMap<u64, Duration>,
}

struct World {
    load: Load,
    random: Random,
    now: Duration,
    number: u64,
    agenda: BTreeMap<(Duration, u64), Item>,
    /// When each machine, of a client or of the server, is told the time next.
    ticks: BTreeMap<Option<usize>, Duration>,
    server: Server,
    clients: Vec<Client>,
    /// What is in each run.
    runs: BTreeMap<u64, Vec<BatchId>>,
    device: Device,
    /// Loads that wait for the disk: load, run, partition.
    loads: BTreeMap<u64, (u64, u64, u32)>,
    disk_until: Duration,
    result: Overload,
}

/// Runs it, and says whether all got what is theirs.
///
/// # Errors
/// Who did not, for people.
pub fn simulate_overload(load: Load, seed: u64) -> Result<Overload, String> {
    let mut world = World::new(load, seed);
    world.prepare()?;
    while let Some(((at, _), item)) = world.agenda.pop_first() {
        world.now = at;
        world.step(item)?;
    }
    world.server.check().map_err(|broken| broken.to_string())?;
    world.judge()
}

fn group() -> GroupId {
    GroupId {
        epoch: GENERATION,
        server: SERVER,
    }
}

/// A batch with the rows of all these partitions.
fn batch(shuffle: ShuffleId, id: BatchId, partitions: u32) -> (Header, Table) {
    let mut builder = TableBuilder::new(shuffle, GENERATION, id, 8);
    for partition in 0..partitions {
        let tally = Tally {
            rows: SIZE / 8,
            bytes: SIZE,
            digest: u64::from(id.map + partition + 1),
        };
        builder.push(partition, &tally);
    }
    builder.finish().expect("pieces are in order")
}

impl World {
    fn new(load: Load, seed: u64) -> Self {
        let config = Config {
            run: 8 * SIZE,
            server_window: DEPTH as u64 * 2 * SIZE,
            reads: 4,
            ..Config::default()
        };
        let clients = [1, 3, 1, 3, 1]
            .into_iter()
            .zip(0..)
            .map(|(priority, index)| {
                let tenant = Tenant {
                    application: ApplicationId(index),
                    priority,
                };
                Client {
                    tenant,
                    shuffle: ShuffleId(index),
                    writer: Writer::new(config.clone()),
                    reader: Reader::new(tenant, config.clone()),
                    next: 0,
                    begun: BTreeMap::new(),
                }
            });
        Self {
            load,
            random: Random::new(seed),
            now: Duration::ZERO,
            number: 0,
            agenda: BTreeMap::new(),
            ticks: BTreeMap::new(),
            server: Server::new(SERVER, config.clone()),
            clients: clients.collect(),
            runs: BTreeMap::new(),
            device: Device::new(DeviceOptions::new(&config, true)),
            loads: BTreeMap::new(),
            disk_until: Duration::ZERO,
            result: Overload::default(),
        }
    }

    fn schedule(&mut self, delay: Duration, item: Item) {
        self.number += 1;
        self.agenda.insert((self.now + delay, self.number), item);
    }

    /// Through the network.
    fn send(&mut self, item: Item) {
        let latency = self.random.micros(50, 150);
        self.schedule(latency, item);
    }

    /// When the disk has done so many bytes more.
    fn disk(&mut self, bytes: u64) -> Duration {
        let time = Duration::from_nanos(bytes * 1_000_000_000 / RATE);
        self.disk_until = self.disk_until.max(self.now) + time;
        self.disk_until - self.now
    }

    /// Everybody knows the plans. For reads, the rows are in files.
    fn prepare(&mut self) -> Result<(), String> {
        let budget = match self.load {
            Load::Pushes => 16 * SIZE,
            Load::Reads => 1 << 30,
        };
        self.budget(budget, 2 * budget)?;
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            let partitions = match self.load {
                Load::Pushes => 1,
                Load::Reads => PARTITIONS,
            };
            let plan = Plan {
                shuffle: client.shuffle,
                generation: GENERATION,
                opened: GENERATION,
                is_final: false,
                tenant: client.tenant,
                maps: u32::MAX,
                partitions,
                groups: vec![Group::new(group(), Runs::range(0, partitions.into()))],
            };
            let plan = ToNode::Plan(plan.into());
            self.serve(ServerEvent::Master {
                link: LinkId::ONLY,
                message: plan.clone(),
            })?;
            if self.load == Load::Reads {
                self.store(index)?;
            }
            self.write(index, WriterEvent::Master(plan.clone()))?;
            self.read(index, ReaderEvent::Master(plan))?;
        }
        if self.load == Load::Reads {
            // All rows go to files. Nothing is pushed any more: what reads may take is not what is tested.
            self.budget(1, u64::MAX)?;
        }
        self.schedule(Duration::ZERO, Item::Begin(MODEST));
        for index in 0..MODEST {
            for _ in 0..DEPTH {
                self.schedule(LOADED[0], Item::Begin(index));
            }
        }
        Ok(())
    }

    fn budget(&mut self, target: u64, limit: u64) -> Result<(), String> {
        self.serve(ServerEvent::Budget { target, limit })
    }

    /// The rows of a shuffle with one map.
    fn store(&mut self, index: usize) -> Result<(), String> {
        let shuffle = self.clients[index].shuffle;
        let id = BatchId {
            map: 0,
            attempt: AttemptId(1),
            number: 0,
        };
        let (header, table) = batch(shuffle, id, PARTITIONS);
        let push = Push {
            shuffle,
            group: group(),
            batch: id,
            tally: header.tally,
            length: header.length(),
        };
        let from = ConnectionId(index as u64);
        let message = ToServer::Push(push);
        let admit = ServerEvent::Message { from, message };
        let mut ignored = Vec::new();
        let refused = |error: treadle_shuffle::ShuffleError| error.to_string();
        let handled = self.server.handle(admit, self.now, &mut ignored);
        handled.map_err(refused)?;
        let arrived = ServerEvent::Arrived {
            from,
            push,
            table: Some(table),
        };
        let handled = self.server.handle(arrived, self.now, &mut ignored);
        handled.map_err(refused)?;
        let expected = Expected {
            winners: [(0, id.attempt)].into_iter().collect(),
            tally: header.tally,
        };
        let seal = Seal {
            shuffle,
            generation: GENERATION,
            group: group(),
            round: 1,
            expected,
        };
        self.serve(ServerEvent::Master {
            link: LinkId::ONLY,
            message: ToNode::Seal(seal),
        })
    }

    fn step(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Begin(index) => self.begin(index),
            Item::Asked(index, message) => {
                let from = ConnectionId(index as u64);
                self.serve(ServerEvent::Message { from, message })
            }
            Item::Arrived(index, push) => {
                let from = ConnectionId(index as u64);
                let (_, table) = batch(push.shuffle, push.batch, 1);
                let table = Some(table);
                self.serve(ServerEvent::Arrived { from, push, table })
            }
            Item::Written(run) => {
                let written = Ok(());
                self.serve(ServerEvent::Spilled { run, written })
            }
            Item::Loaded(turn, numbers) => {
                self.device(DeviceEvent::Done {
                    turn,
                    outcome: Outcome::Done,
                })?;
                numbers
                    .into_iter()
                    .try_for_each(|number| self.loaded(number))
            }
            Item::Sent(load) => self.serve(ServerEvent::Sent { load }),
            Item::Answered(index, message) => self.answered(index, message),
            // An earlier one was scheduled after it.
            Item::Tick(of) if self.ticks.get(&of) != Some(&self.now) => Ok(()),
            Item::Tick(of) => {
                self.ticks.remove(&of);
                let Some(index) = of else {
                    return self.serve(ServerEvent::Tick);
                };
                self.write(index, WriterEvent::Tick)?;
                self.read(index, ReaderEvent::Tick)
            }
        }
    }

    /// The disk has read something.
    fn loaded(&mut self, number: u64) -> Result<(), String> {
        let load = self.loads.remove(&number);
        let (load, run, partition) = load.ok_or("what nobody has asked for was read")?;
        let id = self.runs[&run][0];
        let (_, table) = batch(ShuffleId(0), id, PARTITIONS);
        let piece = table.find(partition).ok_or("there is no such partition")?;
        let piece = ReadPiece::new(id, &piece);
        let pieces = Some(vec![piece]);
        self.serve(ServerEvent::Loaded { load, run, pieces })
    }

    fn device(&mut self, event: DeviceEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let handled = self.device.handle(event, self.now, &mut effects);
        handled.map_err(|error| error.to_string())?;
        self.device.check().map_err(|broken| broken.to_string())?;
        for effect in effects {
            match effect {
                DeviceEffect::Begin { turn, requests } => {
                    let time = self.disk(SIZE * requests.len() as u64);
                    self.schedule(time, Item::Loaded(turn, requests));
                }
                DeviceEffect::Refuse(number) => {
                    let (load, ..) = self.loads.remove(&number).ok_or("it is refused twice")?;
                    self.serve(ServerEvent::Unloaded { load })?;
                }
                DeviceEffect::Limits(limits) => {
                    self.serve(ServerEvent::Limited { disk: 0, limits })?
                }
            }
        }
        Ok(())
    }

    /// An application asks for something.
    fn begin(&mut self, index: usize) -> Result<(), String> {
        let end = if index == MODEST { END } else { LOADED[1] };
        if self.now >= end {
            return Ok(());
        }
        if index == MODEST {
            self.schedule(PERIOD, Item::Begin(MODEST));
        }
        let client = &mut self.clients[index];
        let (shuffle, number) = (client.shuffle, client.next);
        client.next += 1;
        client.begun.insert(number.into(), self.now);
        match self.load {
            Load::Pushes => {
                let transfer = Transfer {
                    shuffle,
                    map: number,
                    attempt: AttemptId(1),
                };
                let again = false;
                self.write(
                    index,
                    WriterEvent::Begin {
                        transfer,
                        again,
                        replaces: true,
                    },
                )
            }
            Load::Reads => self.read(
                index,
                ReaderEvent::Begin {
                    read: number.into(),
                    shuffle,
                    generation: GENERATION,
                    partition: number % PARTITIONS,
                    maps: None,
                },
            ),
        }
    }

    /// A request is done.
    fn done(&mut self, index: usize, number: u64) {
        let begun = self.clients[index].begun.remove(&number);
        let took = self.now - begun.unwrap_or(self.now);
        if (MEASURED..LOADED[1]).contains(&self.now) {
            self.result.served[index] += 1;
        }
        if index != MODEST {
            return self.schedule(Duration::ZERO, Item::Begin(index));
        }
        let at = begun.unwrap_or(self.now);
        let phase = if self.now < LOADED[0] {
            0
        } else if (MEASURED..LOADED[1]).contains(&at) {
            1
        } else if at >= NORMAL {
            2
        } else {
            return;
        };
        let longest = &mut self.result.latency[phase];
        *longest = took.max(*longest);
    }

    fn answered(&mut self, index: usize, message: FromServer) -> Result<(), String> {
        let is_sleep = |reason: &Refusal| matches!(reason, Refusal::Sleep(_));
        let from = SERVER;
        match &message {
            FromServer::Refused { reason, .. } | FromServer::Unread { reason, .. }
                if !is_sleep(reason) =>
            {
                return Err(format!("application {index} was refused: {reason}"));
            }
            FromServer::Refused { .. } | FromServer::Unread { .. } => {
                self.result.slept[index] += 1;
            }
            _ => {}
        }
        match &message {
            FromServer::Rows { pieces, .. } => {
                let computed = pieces.iter().map(|piece| piece.digest).collect();
                self.read(
                    index,
                    ReaderEvent::Server {
                        from,
                        message,
                        computed,
                    },
                )
            }
            FromServer::Unread { .. } => {
                let computed = Vec::new();
                self.read(
                    index,
                    ReaderEvent::Server {
                        from,
                        message,
                        computed,
                    },
                )
            }
            _ => self.write(index, WriterEvent::Server { from, message }),
        }
    }

    fn serve(&mut self, event: ServerEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let handled = self.server.handle(event, self.now, &mut effects);
        handled.map_err(|error| error.to_string())?;
        for effect in effects {
            match effect {
                ServerEffect::Reply { to, message } => {
                    self.send(Item::Answered(to.0 as usize, message));
                }
                ServerEffect::Admit { from, push } => {
                    self.send(Item::Arrived(from.0 as usize, push));
                }
                ServerEffect::Spill { run, batches, .. } => {
                    let bytes = match self.load {
                        Load::Pushes => SIZE * batches.len() as u64,
                        Load::Reads => 1,
                    };
                    let time = self.disk(bytes);
                    self.runs.insert(run, batches);
                    self.schedule(time, Item::Written(run));
                }
                ServerEffect::Load {
                    load,
                    run,
                    partition,
                    tenant,
                    ..
                } => {
                    self.number += 1;
                    self.loads.insert(self.number, (load, run, partition));
                    self.device(DeviceEvent::Asked(Request {
                        number: self.number,
                        tenant,
                        access: Access::Read,
                        file: run,
                        // Runs are not in their order here.
                        offset: u64::from(partition) * 2 * SIZE,
                        bytes: SIZE,
                    }))?;
                }
                ServerEffect::Send(ToSend {
                    to,
                    read,
                    load,
                    pieces,
                    ..
                }) => {
                    let pieces: Vec<_> = pieces.into_iter().map(|sent| sent.piece).collect();
                    let tally: Tally = pieces.iter().map(ReadPiece::tally).sum();
                    let message = FromServer::Rows {
                        read,
                        tally: tally.narrow(),
                        pieces,
                    };
                    self.send(Item::Answered(to.0 as usize, message));
                    self.schedule(Duration::ZERO, Item::Sent(load));
                }
                _ => {}
            }
        }
        if let Some(due) = self.server.next_deadline() {
            self.tick(due, None);
        }
        Ok(())
    }

    /// A machine has asked for the time.
    fn tick(&mut self, due: Duration, of: Option<usize>) {
        // Later ones are asked for again after each event.
        let delay = due.saturating_sub(self.now).max(Duration::from_micros(1));
        let at = self.now + delay;
        if delay < Duration::from_secs(5) && self.ticks.get(&of).is_none_or(|next| at < *next) {
            self.ticks.insert(of, at);
            self.schedule(delay, Item::Tick(of));
        }
    }

    fn write(&mut self, index: usize, event: WriterEvent) -> Result<(), String> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut effects = Vec::new();
            let writer = &mut self.clients[index].writer;
            let handled = writer.handle(event, self.now, &mut effects);
            handled.map_err(|error| error.to_string())?;
            for effect in effects {
                match effect {
                    WriterEffect::Gather {
                        transfer, group, ..
                    } => {
                        let (header, _) = batch(transfer.shuffle, transfer.batch(0), 1);
                        let batches = vec![(header.tally, header.length())];
                        events.push(WriterEvent::Gathered {
                            transfer,
                            group,
                            gathered: Gathered { batches },
                        });
                    }
                    WriterEffect::Send { message, .. } => self.send(Item::Asked(index, message)),
                    WriterEffect::Done(receipt) => self.done(index, receipt.transfer.map.into()),
                    WriterEffect::Failed { error, .. } => return Err(error.to_string()),
                    WriterEffect::Free { .. } | WriterEffect::Report(_) => {}
                }
            }
        }
        if let Some(due) = self.clients[index].writer.next_deadline() {
            self.tick(due, Some(index));
        }
        Ok(())
    }

    fn read(&mut self, index: usize, event: ReaderEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let reader = &mut self.clients[index].reader;
        let handled = reader.handle(event, self.now, &mut effects);
        handled.map_err(|error| error.to_string())?;
        for effect in effects {
            match effect {
                ReaderEffect::Send { message, .. } => self.send(Item::Asked(index, message)),
                ReaderEffect::Return { read, .. } => self.done(index, read),
                ReaderEffect::Failed { error, .. } => return Err(error.to_string()),
                ReaderEffect::Keep { .. } | ReaderEffect::Report(_) => {}
            }
        }
        if let Some(due) = self.clients[index].reader.next_deadline() {
            self.tick(due, Some(index));
        }
        Ok(())
    }

    fn judge(self) -> Result<Overload, String> {
        let Self {
            result, clients, ..
        } = self;
        if let Some(client) = clients.iter().find(|client| !client.begun.is_empty()) {
            let tenant = client.tenant;
            return Err(format!("{tenant:?} was not served in the end: {result:?}"));
        }
        let greedy = &result.served[..MODEST];
        let (all, weights) = (greedy.iter().sum::<u64>(), 1 + 3 + 1 + 3);
        for (served, client) in greedy.iter().zip(&clients) {
            let share = all * u64::from(client.tenant.priority) / weights;
            if served.abs_diff(share) * 10 > share {
                return Err(format!(
                    "{:?} has another share than its priority says: {served} and not {share} of \
                     {all}: {result:?}",
                    client.tenant
                ));
            }
        }
        let [before, loaded, after] = result.latency;
        if result.slept[MODEST] > 0 || loaded > before + Duration::from_millis(100) {
            return Err(format!("who wants little has to wait: {result:?}"));
        }
        if after > before * 2 {
            return Err(format!("ten seconds later it is still slow: {result:?}"));
        }
        Ok(result)
    }
}
