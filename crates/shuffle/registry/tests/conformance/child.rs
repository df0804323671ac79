//! A server in a process of its own, which can be stopped and killed: this program again, as the test below.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use treadle_shuffle_registry::{Location, Standing};

use crate::cases::entry;
use crate::connect;

const VARIABLE: &str = "TREADLE_TEST_REGISTRY";

pub(crate) struct ServerProcess {
    child: Child,
    /// What it prints.
    _output: BufReader<ChildStdout>,
}

impl ServerProcess {
    /// Starts a server, and waits until it is registered.
    pub(crate) fn start(location: &Location, name: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let child = Command::new(program)
            .args([
                "--ignored",
                "--exact",
                "child::this_is_the_server",
                "--nocapture",
            ])
            .env(VARIABLE, format!("{name} {location}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("it starts");
        let output = child.stdout.take().expect("it was piped");
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while !line.contains("is registered") {
            line.clear();
            let count = output.read_line(&mut line).expect("it prints text");
            assert!(count > 0, "{name} has ended before it was registered");
        }
        Self {
            child,
            _output: output,
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args([signal, &id]).status();
        assert!(kill.expect("there is kill").success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "it is the program of other tests"]
fn this_is_the_server() {
    let Ok(text) = std::env::var(VARIABLE) else {
        return;
    };
    let (name, location) = text.split_once(' ').expect("a name and a URL");
    let registry = connect(&location.parse().expect("a URL"));
    let server = registry.register(entry(name, 1)).expect("an entry");
    let mut standing = server.standing();
    while standing != Standing::Registered {
        standing = server.wait(&standing, Duration::from_secs(60));
    }
    println!("{name} is registered");
    // Until the other end is closed.
    let _ = std::io::stdin().read(&mut [0]);
}
