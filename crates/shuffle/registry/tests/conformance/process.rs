//! Servers of registries as processes.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::watcher::LIMIT;

/// A process that ends with the test.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn();
        Self(child.expect("the server starts"))
    }

    /// Waits until it is there.
    pub(crate) fn wait(&mut self, what: &str, is_there: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !is_there() {
            let ended = self.0.try_wait().expect("it is a child");
            assert!(ended.is_none(), "{what} has ended: {ended:?}");
            assert!(Instant::now() < end, "{what} does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody uses now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    listener.local_addr().expect("it has an address").port()
}

/// What `make test-registries` says of a registry's server.
pub(crate) fn place(variable: &str) -> PathBuf {
    let place = std::env::var_os(variable);
    place
        .unwrap_or_else(|| panic!("{variable} is not set: run make test-registries"))
        .into()
}
