//! The processes: one that coordinates and works, one that works, and the servers.
//!
//! Both that work make the same plan of a query, and so the same stages. The coordinator says on the other's standard input what it
//! is to do, a line each:
//!
//! ```text
//! query NUMBER                    make the plan of this query
//! shuffle STAGE SHUFFLE           the exchange of a stage goes through the shuffle with this number
//! map STAGE MAP AGAIN             run a map; the answer is a line with its receipt, in hexadecimal digits
//! committed STAGE GENERATION      readers of the exchange read this generation
//! ```

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::error::Result as Planned;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::collect;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use treadle_shuffle_client::local::{Master, Server, ServerSpec};
use treadle_shuffle_client::{Error, Generation, Options, Receipt, Service, Spec, Wait};

use crate::Failed;
use crate::stages::Stages;
use crate::tables::{QUERIES, Query, context};

/// How long the coordinator waits for the service.
fn soon() -> Wait<'static> {
    Wait::within(Duration::from_secs(60))
}

/// What proves the secret of this user.
fn options(name: &str) -> Options {
    Options::new().name(name)
}

/// A query that is planned.
struct Job {
    runtime: Runtime,
    context: Arc<TaskContext>,
    stages: Stages,
}

impl Job {
    fn new(query: &Query) -> Planned<Self> {
        let runtime = Runtime::new()?;
        let (context, stages) = runtime.block_on(planned(query))?;
        Ok(Self {
            runtime,
            context,
            stages,
        })
    }

    /// Runs maps of a stage here, all at once. Returns the bytes of their receipts.
    fn run(&self, stage: usize, maps: &[u32], again: bool) -> Planned<Vec<Vec<u8>>> {
        let writer = &self.stages.before[stage];
        let maps = maps
            .iter()
            .map(|&map| writer.run(map, again, self.context.clone()));
        self.runtime.block_on(futures::future::try_join_all(maps))
    }
}

async fn planned(query: &Query) -> Planned<(Arc<TaskContext>, Stages)> {
    let context = context()?;
    let plan = context.sql(query.sql).await?.create_physical_plan().await?;
    Ok((context.task_ctx(), Stages::of(plan)?))
}

/// Another process of this program, with a pipe to it and one from it.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts one, and waits until it says that it is ready.
    fn start(arguments: &[&str]) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("it has no output")?);
        let input = child.stdin.take();
        let mut process = Self {
            child,
            input,
            output,
        };
        process.line()?;
        Ok(process)
    }

    fn tell(&mut self, line: &str) -> Result<(), Failed> {
        let input = self.input.as_mut().ok_or("it has no input")?;
        Ok(writeln!(input, "{line}")?)
    }

    fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err("a process of this example has ended: see what it wrote above".into()),
            _ => Ok(line.trim_end().into()),
        }
    }

    /// SIGKILL.
    fn kill(&mut self) -> Result<(), Failed> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The process that plans, works, and asks the other one.
pub struct Coordinator {
    service: Service,
    worker: Process,
    servers: Vec<Process>,
    /// Dropped after the servers.
    _own: Option<(Master, TempDir)>,
}

impl Coordinator {
    /// Starts the other process, and a service with three servers if none is given.
    ///
    /// # Errors
    /// A process cannot be started, or the service is not reached.
    pub fn start(service: Option<&str>) -> Result<Self, Failed> {
        let (address, local, servers) = match service {
            Some(address) => (address.to_owned(), None, Vec::new()),
            None => {
                let master = Master::start(&options("master"))?;
                let (address, directory) = (master.address(), tempfile::tempdir()?);
                let start = |name| {
                    let place = directory.path().join(name);
                    Process::start(&["server", &address, name, &place.to_string_lossy()])
                };
                let servers = ["a", "b", "c"].into_iter().map(start);
                let servers = servers.collect::<Result<Vec<_>, _>>()?;
                (address, Some((master, directory)), servers)
            }
        };
        // Both processes that work have it, and no others.
        let application = RandomState::new().build_hasher().finish();
        let own = options("coordinator").application(application);
        let service = Service::connect(&address, own, &mut soon())?;
        Ok(Self {
            worker: Process::start(&["worker", &address, &application.to_string()])?,
            service,
            servers,
            _own: local,
        })
    }

    /// What DataFusion finds by itself.
    ///
    /// # Errors
    /// Its own.
    pub fn alone(&self, query: Query) -> Result<Vec<RecordBatch>, Failed> {
        let runtime = Runtime::new()?;
        let found = runtime.block_on(async { context()?.sql(query.sql).await?.collect().await });
        Ok(found?)
    }

    /// What both processes find.
    ///
    /// # Errors
    /// Those of DataFusion and of the service.
    pub fn run(&mut self, query: Query) -> Result<Vec<RecordBatch>, Failed> {
        let job = Job::new(&query)?;
        let number = QUERIES.iter().position(|one| one.sql == query.sql);
        self.worker
            .tell(&format!("query {}", number.unwrap_or_default()))?;
        for stage in 0..job.stages.before.len() {
            let is_first = stage == 0;
            self.run_stage(&job, stage, query.kills_a_server && is_first)?;
        }
        let last = collect(job.stages.last.clone(), job.context.clone());
        Ok(job.runtime.block_on(last)?)
    }

    /// Writes an exchange, and commits it. Maps whose rows are lost run again.
    fn run_stage(&mut self, job: &Job, stage: usize, kills: bool) -> Result<(), Failed> {
        let exchange = job.stages.before[stage].exchange();
        let spec = Spec::new(exchange.maps(), exchange.partitions());
        let spec = spec.name(format!("exchange {stage}"));
        let shuffle = self.service.register(&spec, &mut soon())?;
        self.worker
            .tell(&format!("shuffle {stage} {}", shuffle.number()))?;
        let shuffle = exchange.attach(shuffle);
        let mut receipts: Vec<Option<Receipt>> = vec![None; exchange.maps() as usize];
        let (mut maps, mut again) = ((0..exchange.maps()).collect::<Vec<u32>>(), false);
        loop {
            for receipt in self.run_maps(job, stage, &maps, again)? {
                let map = receipt.map() as usize;
                receipts[map] = Some(receipt);
            }
            if let (true, Some(server)) = (kills && !again, self.servers.first_mut()) {
                server.kill()?;
            }
            let chosen: Vec<Receipt> = receipts.iter().flatten().cloned().collect();
            match shuffle.commit(&chosen, &mut soon()) {
                Ok(generation) => {
                    exchange.committed(generation);
                    return self
                        .worker
                        .tell(&format!("committed {stage} {}", generation.0));
                }
                Err(Error::RowsLost { maps: lost, .. }) => (maps, again) = (lost, true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs maps: every other one in the other process.
    fn run_maps(
        &mut self,
        job: &Job,
        stage: usize,
        maps: &[u32],
        again: bool,
    ) -> Result<Vec<Receipt>, Failed> {
        let (own, others): (Vec<u32>, Vec<u32>) = maps.iter().partition(|&map| map % 2 == 0);
        for map in &others {
            self.worker.tell(&format!("map {stage} {map} {again}"))?;
        }
        let mut receipts = job.run(stage, &own, again)?;
        for _ in &others {
            receipts.push(bytes(&self.worker.line()?)?);
        }
        let receipts = receipts.iter().map(|bytes| Receipt::from_bytes(bytes));
        Ok(receipts.collect::<Result<_, _>>()?)
    }
}

/// The other process: does what it is told until its input ends.
///
/// # Errors
/// Those of DataFusion and of the service.
pub fn work(address: &str, application: u64) -> Result<(), Failed> {
    let own = options("worker").application(application);
    let service = Service::connect(address, own, &mut soon())?;
    println!("ready");
    let mut job: Option<Job> = None;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        if let ["query", number] = words[..] {
            let query = QUERIES.get(number.parse::<usize>()?);
            job = Some(Job::new(query.ok_or("there is no such query")?)?);
            continue;
        }
        let job = job.as_ref().ok_or("no query was given before")?;
        let writer = |stage: &str| -> Result<_, Failed> {
            let stage: usize = stage.parse()?;
            let writer = job.stages.before.get(stage);
            Ok((stage, writer.ok_or("there is no such stage")?.exchange()))
        };
        match words[..] {
            ["shuffle", stage, number] => {
                let shuffle = service.attach(number.parse()?, &mut soon())?;
                writer(stage)?.1.attach(shuffle);
            }
            ["map", stage, map, again] => {
                let receipts = job.run(writer(stage)?.0, &[map.parse()?], again.parse()?)?;
                println!("{}", digits(&receipts[0]));
            }
            ["committed", stage, generation] => {
                writer(stage)?.1.committed(Generation(generation.parse()?));
            }
            _ => return Err(format!("{line:?} is no command").into()),
        }
    }
    Ok(())
}

/// A server, until its input ends.
///
/// # Errors
/// It cannot join.
pub fn serve(master: &str, name: &str, directory: &str) -> Result<(), Failed> {
    let spec = ServerSpec::new(name, directory);
    let server = Server::start(master, spec, &options(name), &mut soon())?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(server);
    Ok(())
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Result<Vec<u8>, Failed> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    pairs.map(byte).collect()
}
