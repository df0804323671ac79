//! A large shuffle, as the master sees it: what registering it takes, and what is kept of it. Servers
//! answer at once, and no rows move.

use std::time::{Duration, Instant};

use treadle_shuffle::{
    AttemptId, Config, GroupId, Intake, Master, MasterEffect, MasterEvent, Receipt, Receipts,
    ServerId, Share, ShuffleId, Spec, Standing, Tally, Tenant, ToMaster, ToNode, Transfer, Verdict,
};
use treadle_types::Runs;

#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// Inputs.
    pub maps: u32,
    /// Outputs.
    pub partitions: u32,
    /// Servers, each of which gets a group, and has copies of two.
    pub servers: u32,
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Groups of the plan.
    pub groups: usize,
    /// From the registration until there is a plan for all who take part.
    pub registering: Duration,
    /// Bytes that the master kept at most while maps ran.
    pub most: u64,
    /// Bytes that it keeps after the commit.
    pub kept: u64,
    /// Bytes of the commit.
    pub commit: u64,
}

const S: ShuffleId = ShuffleId(1);
/// A process that only pushes.
const CLIENT: ServerId = ServerId {
    node: 0,
    incarnation: 1,
};
/// The attempt of a map whose rows a later one found at every other group.
const EARLIER: AttemptId = AttemptId(1);

/// Registers a shuffle, runs its maps in any order, and commits it. Each 20th map has run twice: half of
/// its rows are those of the first attempt.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_large(large: Large) -> Result<Figures, String> {
    let mut job = Job::begin(large)?;
    job.run()?;
    job.end()
}

/// What many applications take that have a master each, over the same servers.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Time of one that is alone, of one thread.
    pub alone: Duration,
    /// The same of each of many, which take turns.
    pub together: Duration,
    /// Bytes that a master kept at most.
    pub most: u64,
}

/// As [`simulate_large`], of so many applications: all are registered before the first map runs, and all maps
/// have run before the first commit.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_many(large: Large, applications: u32) -> Result<Shared, String> {
    let begun = Instant::now();
    let rounds = 8;
    for _ in 0..rounds {
        simulate_large(large)?;
    }
    let alone = begun.elapsed() / rounds;
    let begun = Instant::now();
    let jobs = (0..applications).map(|_| Job::begin(large));
    let mut jobs = jobs.collect::<Result<Vec<Job>, String>>()?;
    for job in &mut jobs {
        job.run()?;
    }
    let mut most = 0;
    for job in jobs {
        most = most.max(job.end()?.most);
    }
    Ok(Shared {
        alone,
        together: begun.elapsed() / applications,
        most,
    })
}

/// A shuffle that is registered.
struct Job {
    head: Head,
    large: Large,
    groups: Vec<GroupId>,
    receipts: Receipts,
    registering: Duration,
    most: u64,
}

impl Job {
    fn begin(large: Large) -> Result<Self, String> {
        let mut head = Head(Master::new(Config::default()));
        for node in 0..=large.servers {
            let standing = Standing {
                domain: node % 50,
                weight: u32::from(node > 0),
                intake: Intake::default(),
                store: 0,
            };
            let server = ServerId {
                node,
                incarnation: 1,
            };
            head.say(MasterEvent::Standing { server, standing })?;
        }
        let spec = Spec {
            tenant: Tenant::default(),
            maps: large.maps,
            partitions: large.partitions,
            outputs: Runs::range(0, large.partitions.into()),
            aligned: None,
            copies: 2,
            is_handed_over: true,
            expected: 0,
            preferred: Vec::new(),
            committed: None,
        };
        let begun = Instant::now();
        head.say(MasterEvent::Register { shuffle: S, spec })?;
        let effects = head.hear(CLIENT, ToMaster::Join(S))?;
        let registering = begun.elapsed();
        let plan = effects.into_iter().find_map(|effect| match effect {
            MasterEffect::Send {
                message: ToNode::Plan(plan),
                ..
            } => Some(plan),
            _ => None,
        });
        let plan = plan.ok_or("there is no plan")?;
        Ok(Self {
            head,
            large,
            groups: plan.groups.iter().map(|group| group.id).collect(),
            receipts: Receipts::new(S, large.maps),
            registering,
            most: 0,
        })
    }

    /// Runs the maps.
    fn run(&mut self) -> Result<(), String> {
        let maps = u64::from(self.large.maps);
        for turn in 0..self.large.maps {
            let receipt = receipt((u64::from(turn) * 7_919 % maps) as u32, &self.groups);
            let added = self.receipts.add(&receipt);
            added.map_err(|error| error.to_string())?;
            let message = ToMaster::Transferred {
                transfer: receipt.transfer,
                groups: self.groups.clone(),
                tally: receipt.tally(),
            };
            self.head.hear(CLIENT, message)?;
            if turn % 1_000 == 0 {
                self.most = self.most.max(self.head.0.footprint());
            }
        }
        self.most = self.most.max(self.head.0.footprint());
        Ok(())
    }

    /// Commits, and ends the shuffle.
    fn end(self) -> Result<Figures, String> {
        let mut head = self.head;
        let commit = self.receipts.commit().map_err(|error| error.to_string())?;
        let bytes = commit.footprint();
        let seals = head.hear(CLIENT, ToMaster::Commit { ask: 1, commit })?;
        let mut is_committed = false;
        for seal in seals {
            let MasterEffect::Send {
                to,
                message: ToNode::Seal(seal),
            } = seal
            else {
                continue;
            };
            if seal.expected.winners.len() != u64::from(self.large.maps) {
                return Err(format!("{:?} lacks maps", seal.group));
            }
            let message = ToMaster::Sealed {
                shuffle: S,
                group: seal.group,
                round: seal.round,
                verdict: Verdict::Complete,
            };
            let effects = head.hear(to, message)?;
            is_committed |= effects.iter().any(|effect| {
                let MasterEffect::Send { message, .. } = effect else {
                    return false;
                };
                matches!(message, ToNode::Committed { result: Ok(_), .. })
            });
        }
        let kept = head.0.footprint();
        head.0.check().map_err(|broken| broken.to_string())?;
        head.say(MasterEvent::End(S))?;
        match (is_committed, head.0.footprint()) {
            (true, 0) => Ok(Figures {
                groups: self.groups.len(),
                registering: self.registering,
                most: self.most,
                kept,
                commit: bytes,
            }),
            (true, left) => Err(format!("the master keeps {left} bytes of what has ended")),
            (false, _) => Err("it was not committed".into()),
        }
    }
}

fn receipt(map: u32, groups: &[GroupId]) -> Receipt {
    let attempt = AttemptId(u64::from(1_000 + map) << 32 | 1);
    let has_run = map.is_multiple_of(20);
    let shares = groups.iter().enumerate().map(|(at, &group)| Share {
        group,
        holder: match has_run && at.is_multiple_of(2) {
            true => EARLIER,
            false => attempt,
        },
        tally: Tally {
            rows: 1,
            bytes: 8,
            digest: u64::from(map),
        },
    });
    Receipt {
        transfer: Transfer {
            shuffle: S,
            map,
            attempt,
        },
        shares: shares.collect(),
    }
}

struct Head(Master);

impl Head {
    fn say(&mut self, event: MasterEvent) -> Result<Vec<MasterEffect>, String> {
        let mut effects = Vec::new();
        let result = self.0.handle(event, &mut effects);
        result.map_err(|error| error.to_string())?;
        Ok(effects)
    }

    fn hear(&mut self, from: ServerId, message: ToMaster) -> Result<Vec<MasterEffect>, String> {
        self.say(MasterEvent::Message { from, message })
    }
}

/// Prints what 40,000 maps and 40,000 partitions take on 1,000 servers.
pub fn report() {
    let large = Large {
        maps: 40_000,
        partitions: 40_000,
        servers: 1_000,
    };
    println!("{large:?}");
    match simulate_large(large) {
        Ok(figures) => {
            println!("groups                             {}", figures.groups);
            println!(
                "registering, until there is a plan {:.1?}",
                figures.registering
            );
            println!("kept by the master, at most        {}", mib(figures.most));
            println!("kept by the master, committed      {}", mib(figures.kept));
            println!("the commit                         {}", mib(figures.commit));
            if let Some(peak) = peak() {
                println!("peak of the process                {}", mib(peak));
            }
        }
        Err(error) => println!("{error}"),
    }
}

/// Prints what 200 applications take on 1,000 servers, each of which has a master of its own.
pub fn report_of_many() {
    let large = Large {
        maps: 200,
        partitions: 1_000,
        servers: 1_000,
    };
    let applications = 200;
    println!("{applications} applications, each {large:?}");
    match simulate_many(large, applications) {
        Ok(shared) => {
            let ratio = shared.together.as_secs_f64() / shared.alone.as_secs_f64();
            println!(
                "registration, maps and commit, alone    {:.1?}",
                shared.alone
            );
            println!(
                "the same of each of {applications}                 {:.1?}, {ratio:.2} x (at most 1.2)",
                shared.together
            );
            println!(
                "kept by a master, at most               {} (at most 64)",
                mib(shared.most)
            );
        }
        Err(error) => println!("{error}"),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The most memory that this process has had, where the system says so.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}
