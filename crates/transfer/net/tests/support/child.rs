//! Another process: the test binary itself, running one of its ignored tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::LONG;

/// What marks the lines that are meant for the other process, among those of the test harness.
const MARK: &str = "child: ";

pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// Runs this ignored test, with an argument.
    pub fn start(test: &str, argument: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("TREADLE_TEST_ARGUMENT", argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    let _ = send.send(line.to_owned());
                }
            }
        });
        let input = child.stdin.take().unwrap();
        Self {
            child,
            input,
            lines,
        }
    }

    /// The next line that it says.
    pub fn line(&self) -> String {
        self.lines
            .recv_timeout(LONG)
            .expect("the child says nothing")
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has processes stop for so long, as Ctrl-Z and `fg` do.
    pub fn pause(processes: &[&Self], time: Duration) {
        let signal = |signal| {
            for process in processes {
                kill_process(Pid::from_child(&process.child), signal).unwrap();
            }
        };
        signal(Signal::STOP);
        std::thread::sleep(time);
        signal(Signal::CONT);
    }

    /// The most memory that it ever had, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.peak("VmHWM:")
    }

    /// The most addresses that it ever had, in bytes.
    pub fn peak_addresses(&self) -> u64 {
        self.peak("VmPeak:")
    }

    fn peak(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child: its argument.
pub fn argument() -> String {
    std::env::var("TREADLE_TEST_ARGUMENT").expect("run by another test")
}

/// In the child: says a line.
pub fn tell(line: &str) {
    println!("{MARK}{line}");
}

/// In the child: the next line that it is told; ends the process when there is none.
pub fn told() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(count) if count > 0 => line.trim_end().to_owned(),
        _ => std::process::exit(0),
    }
}
