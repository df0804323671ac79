//! Engines that are processes, each on a host of its own as far as the plane can tell: they are killed
//! while they relay, and paused.
//!
//! `TREADLE_PUSH` says how many megabytes are pushed.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_node_scheduler::Server;

use crate::cluster::{Caster, Engine, LONG, Run, server};

/// In an engine's environment: the scheduler, its name and its host.
const ENGINE: &str = "TREADLE_TEST_ENGINE";

/// A checksum of what came, with the lengths.
fn sum(frames: &[Bytes]) -> u64 {
    let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap());
    frames.iter().fold(0, |sum, frame| {
        let (words, rest) = frame.split_at(frame.len() / 8 * 8);
        let add = |sum: u64, value: u64| sum.rotate_left(1) ^ value;
        let sum = words.chunks_exact(8).map(word).fold(sum, add);
        let sum = rest.iter().map(|&byte| u64::from(byte)).fold(sum, add);
        add(sum, frame.len() as u64)
    })
}

/// Answers with the checksum, and the numbers of all casts that ran here, in their order.
fn answers() -> Run {
    let ran = Mutex::new(Vec::new());
    Arc::new(move |_, cast| {
        let frames = cast.frames.iter();
        let frames: Vec<Bytes> = frames
            .map(|frame| Bytes::copy_from_slice(frame.as_slice()))
            .collect();
        let mut ran = ran.lock().unwrap();
        ran.push(cast.number);
        let numbers = ran.iter().flat_map(|number| number.to_le_bytes());
        vec![
            Bytes::copy_from_slice(&sum(&frames).to_le_bytes()),
            numbers.collect::<Vec<u8>>().into(),
        ]
    })
}

/// What a process does that [`Process::new`] starts: it is an engine, until nobody needs it.
#[test]
#[ignore = "no test: what the processes do that others start"]
fn engine() {
    let Ok(words) = std::env::var(ENGINE) else {
        return;
    };
    let words: Vec<&str> = words.split(' ').collect();
    let [scheduler, name, host] = words[..] else {
        panic!("{words:?}");
    };
    let _engine = Engine::connect(&scheduler.parse().unwrap(), name, host, 0, answers());
    let _ = std::io::stdin().read(&mut [0]);
}

struct Process(Child);

impl Process {
    fn new(server: &Server, name: &str, host: &str) -> Self {
        let words = format!("{} {name} {host}", server.address());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::engine", "--ignored", "--nocapture"]);
        command.env(ENGINE, words).stdin(Stdio::piped());
        command.stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Returns when all of its threads stand still: they may run on after the signal was sent.
    fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let pid = rustix::process::Pid::from_child(&self.0);
        let stopped = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED);
        assert!(stopped.unwrap().is_some_and(|(_, status)| status.stopped()));
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Engines that are processes, by their ids, and a client.
struct Cluster {
    engines: BTreeMap<u32, Process>,
    client: Caster,
    server: Server,
    started: u32,
}

impl Cluster {
    fn new() -> Self {
        let server = server();
        let client = Caster::new(&server, "client-a");
        let engines = BTreeMap::new();
        Self {
            engines,
            client,
            server,
            started: 0,
        }
    }

    /// Adds engines, until there are so many.
    fn grow(&mut self, count: usize) -> Vec<u32> {
        while self.engines.len() < count {
            let before = self.engines.len();
            self.started += 1;
            let [name, host] = ["w", "host-"].map(|word| format!("{word}{}", self.started));
            let process = Process::new(&self.server, &name, &host);
            let ids = self.client.engines(before + 1);
            let id = ids.iter().find(|id| !self.engines.contains_key(id));
            self.engines.insert(*id.unwrap(), process);
        }
        self.engines.keys().copied().collect()
    }

    /// Waits until the client has sent so many bytes more than `before`.
    fn until_sent(&self, before: u64, bytes: u64) {
        let deadline = Instant::now() + LONG;
        while self.client.traffic().bytes < before + bytes {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn megabytes() -> usize {
    let megabytes = std::env::var("TREADLE_PUSH").ok();
    megabytes.map_or(50, |text| text.parse().unwrap()) << 20
}

fn payload(length: usize) -> Bytes {
    let mut state = 1_u64;
    let words = (0..length / 8).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()
    });
    words.collect::<Vec<u8>>().into()
}

#[test]
fn whoever_is_killed_during_a_push_the_others_get_it_whole_once_and_in_order() {
    let mut cluster = Cluster::new();
    let push = [Bytes::from_static(b"head"), payload(megabytes())];
    let call = [Bytes::from_static(b"call")];
    let sums = [sum(&call), sum(&push), sum(&call)];
    // By position in the order of ids: the first round's first one is the root, since no connection
    // is there yet; later it is who took its place. Two at once, next to each other and not.
    for victims in [&[0][..], &[1], &[2], &[0, 1], &[1, 3], &[3, 4]] {
        let ids = cluster.grow(5);
        let victims: Vec<u32> = victims.iter().map(|&position| ids[position]).collect();
        let first = cluster.client.cast(&ids, &call);
        cluster.client.some(first, ids.len());
        let before = cluster.client.traffic().bytes;
        let rest = [&push[..], &call].map(|frames| cluster.client.cast(&ids, frames));
        cluster.until_sent(before, megabytes() as u64 / 4);
        for victim in &victims {
            let process = &cluster.engines[victim];
            process.signal(rustix::process::Signal::KILL);
        }
        let numbers = [first, rest[0], rest[1]];
        let mut order = BTreeMap::new();
        for (number, sum) in numbers.into_iter().zip(sums) {
            let outcome = cluster.client.outcome(number);
            assert_eq!(outcome.results.len(), ids.len());
            for (engine, result) in outcome.results {
                match result {
                    Ok(frames) => {
                        assert_eq!(frames[0][..], sum.to_le_bytes(), "{engine}, cast {number}");
                        order.insert(engine, frames[1].clone());
                    }
                    Err(reason) => assert!(
                        victims.contains(&engine) && reason.starts_with("lost"),
                        "{engine}: {reason}"
                    ),
                }
            }
        }
        for id in ids.iter().filter(|id| !victims.contains(id)) {
            let ran = order[id].chunks(8);
            let ran: Vec<u64> = ran
                .map(|number| u64::from_le_bytes(number.try_into().unwrap()))
                .collect();
            assert!(ran.is_sorted_by(|one, other| one < other), "{id}: {ran:?}");
            assert!(ran.ends_with(&numbers), "{id}: {ran:?}");
        }
        for victim in victims {
            cluster.engines.remove(&victim);
        }
    }
}

#[test]
fn who_is_paused_holds_up_nobody_else() {
    let mut cluster = Cluster::new();
    let ids = cluster.grow(4);
    let call = [Bytes::from_static(b"call")];
    // The first is the root, and the client stays with it.
    for victim in [ids[0], ids[2]] {
        let number = cluster.client.cast(&ids, &call);
        cluster.client.outcome(number);
        cluster.engines[&victim].stop();
        let numbers = [&call[..], &[payload(3 << 20)], &call].map(|frames| {
            let number = cluster.client.cast(&ids, frames);
            let others = cluster.client.some(number, ids.len() - 1);
            assert!(!others.contains(&victim));
            number
        });
        cluster.engines[&victim].signal(rustix::process::Signal::CONT);
        for number in numbers {
            let outcome = cluster.client.outcome(number);
            assert!(outcome.results.values().all(Result::is_ok), "{outcome:?}");
            assert_eq!(outcome.results.len(), ids.len());
        }
    }
}
