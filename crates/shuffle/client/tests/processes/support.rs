//! Processes of a service, and maps whose rows are known.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use treadle_shuffle_client::local::{self, Master, ServerSpec};
use treadle_shuffle_client::{
    Error, Generation, Options, Receipt, Service, Shuffle, Spec, Wait, Writer,
};

/// The variable that says what a process of this program is to do, and those with what it needs for that.
const ROLE: &str = "TREADLE_CLIENT_TEST_ROLE";
const MASTER: &str = "TREADLE_CLIENT_TEST_MASTER";
const NAME: &str = "TREADLE_CLIENT_TEST_NAME";
const DIRECTORY: &str = "TREADLE_CLIENT_TEST_DIRECTORY";
const SHUFFLE: &str = "TREADLE_CLIENT_TEST_SHUFFLE";
/// What a process writes when it is ready, and before what it has to say.
const READY: &str = "ready:";

pub(super) const APPLICATION: u64 = 7;

pub(super) fn soon() -> Wait<'static> {
    Wait::within(Duration::from_secs(60))
}

pub(super) fn options(application: u64) -> Options {
    alone().application(application)
}

/// Those of an application of one process.
pub(super) fn alone() -> Options {
    let options = Options::new();
    options.secret("the secret of these tests").unwrap()
}

/// Another process of this program.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, master: &str, rest: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        let command = command
            .args(["--exact", "support::a_process_has_a_role", "--nocapture"])
            .env(ROLE, role)
            .env(MASTER, master)
            .envs(rest.iter().copied());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// What it says when it is ready.
    pub(super) fn says(&mut self) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            if let Some((_, said)) = line.split_once(READY) {
                return said.trim().into();
            }
            line.clear();
        }
        panic!("the process ended before it was ready");
    }

    /// SIGKILL.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A process with a server.
#[derive(Debug)]
pub(super) struct Server {
    process: Process,
    pub(super) address: String,
}

impl Server {
    pub(super) fn kill(self) {
        self.process.kill();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What another process of this program runs. In this one it has nothing to do.
#[test]
fn a_process_has_a_role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let said = |name| std::env::var(name).unwrap();
    match role.as_str() {
        "server" => {
            let spec = ServerSpec::new(said(NAME), said(DIRECTORY));
            let server =
                local::Server::start(&said(MASTER), spec, &options(0), &mut soon()).unwrap();
            println!("{READY}{}", server.address());
            until_the_parent_ends();
            drop(server);
        }
        "writer" => {
            let service = connect(&said(MASTER), APPLICATION);
            let number = said(SHUFFLE).parse().unwrap();
            let shuffle = service.attach(number, &mut soon()).unwrap();
            let receipts = (0..shuffle.maps()).map(|map| write(&shuffle, map, false).to_bytes());
            let receipts: Vec<String> = receipts.map(|bytes| hex(&bytes)).collect();
            println!("{READY}{}", receipts.join(" "));
            until_the_parent_ends();
        }
        other => panic!("no role {other}"),
    }
}

fn until_the_parent_ends() {
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

/// A master in this process, and servers in processes of their own.
pub(super) struct Servers {
    pub(super) master: Master,
    directory: TempDir,
}

impl Servers {
    pub(super) fn new() -> Self {
        Self {
            master: Master::start(&options(0)).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(super) fn start(&self, name: &str) -> Server {
        let directory: &Path = self.directory.path();
        let directory = directory.join(name);
        let rest = [(NAME, name), (DIRECTORY, directory.to_str().unwrap())];
        let mut process = Process::start("server", &self.master.address(), &rest);
        let address = process.says();
        Server { process, address }
    }

    pub(super) fn writer(&self, shuffle: &Shuffle) -> Process {
        let number = shuffle.number().to_string();
        Process::start("writer", &self.master.address(), &[(SHUFFLE, &number)])
    }

    pub(super) fn connect(&self) -> Service {
        connect(&self.master.address(), APPLICATION)
    }
}

pub(super) fn connect(master: &str, application: u64) -> Service {
    Service::connect(master, options(application), &mut soon()).unwrap()
}

pub(super) fn register(service: &Service, maps: u32, partitions: u32) -> Shuffle {
    let spec = Spec::new(maps, partitions).name("numbers");
    service.register(&spec, &mut soon()).unwrap()
}

/// Rows of a map. Of each third one there are none.
pub(super) fn rows_of(map: u32, partitions: u32) -> Vec<(u32, Vec<u8>)> {
    let count = if map % 3 == 1 { 0 } else { 1000 };
    let row = |row: u32| {
        let text = format!("{map} {row} {}", "x".repeat(row as usize % 50));
        (
            row.wrapping_mul(2_654_435_761) % partitions,
            text.into_bytes(),
        )
    };
    (0..count).map(row).collect()
}

pub(super) fn filled<'s>(shuffle: &'s Shuffle, map: u32) -> Writer<'s> {
    let mut writer = shuffle.writer(map);
    for (partition, row) in rows_of(map, shuffle.partitions()) {
        writer.write(partition, &row).unwrap();
    }
    writer
}

pub(super) fn write(shuffle: &Shuffle, map: u32, again: bool) -> Receipt {
    let writer = filled(shuffle, map);
    let writer = if again { writer.again() } else { writer };
    writer.finish(&mut soon()).unwrap()
}

pub(super) fn write_all(shuffle: &Shuffle) -> Vec<Receipt> {
    (0..shuffle.maps())
        .map(|map| write(shuffle, map, false))
        .collect()
}

pub(super) fn expected(
    partition: u32,
    maps: std::ops::Range<u32>,
    partitions: u32,
) -> Vec<(u32, Vec<u8>)> {
    let rows = maps.flat_map(|map| {
        rows_of(map, partitions)
            .into_iter()
            .map(move |row| (map, row))
    });
    let rows = rows.filter(|(_, (place, _))| *place == partition);
    rows.map(|(map, (_, row))| (map, row)).collect()
}

/// Reads all partitions, and compares every row.
pub(super) fn compare(shuffle: &Shuffle, generation: Generation) {
    for partition in 0..shuffle.partitions() {
        let rows = shuffle
            .reader(generation)
            .read(partition, &mut soon())
            .unwrap();
        let found: Vec<(u32, Vec<u8>)> = rows
            .with_maps()
            .map(|(map, row)| (map, row.to_vec()))
            .collect();
        let wanted = expected(partition, 0..shuffle.maps(), shuffle.partitions());
        assert!(!wanted.is_empty());
        assert_eq!(rows.len(), wanted.len() as u64);
        assert_eq!(found, wanted);
    }
}

pub(super) fn lost_maps(error: Error) -> Vec<u32> {
    match error {
        Error::RowsLost { maps, .. } => maps,
        other => panic!("{other}"),
    }
}
