//! Servers of registries as processes.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn();
        Self(child.expect("the server starts"))
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
