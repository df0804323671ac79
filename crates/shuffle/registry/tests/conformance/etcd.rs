//! etcd as a process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tempfile::TempDir;
use treadle_shuffle_registry::{Credentials, Location};

use crate::Kind;
use crate::certificates::Certificates;
use crate::process::{Process, free_port, place};
use crate::watcher::LIMIT;

const PREFIX: &str = "/treadle/test";

pub(crate) struct Etcd {
    folder: TempDir,
    port: u16,
    peer: u16,
    tls: bool,
    process: Process,
}

impl Etcd {
    fn run(folder: &TempDir, port: u16, peer: u16, certificates: Option<&Certificates>) -> Process {
        let scheme = if certificates.is_some() {
            "https"
        } else {
            "http"
        };
        let (client, peer) = (
            format!("{scheme}://127.0.0.1:{port}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let mut command = Command::new(place("TREADLE_TEST_ETCD"));
        if let Some(certificates) = certificates {
            let names = [
                ("cert", "node.pem"),
                ("key", "node-key.pem"),
                ("trusted-ca", "ca.pem"),
            ];
            for (option, name) in names {
                command
                    .arg(format!("--{option}-file"))
                    .arg(certificates.file(name));
            }
            command.arg("--client-cert-auth");
        }
        let mut process = Process::start(
            command
                .arg("--data-dir")
                .arg(folder.path().join("data"))
                .args([
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ])
                .args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ])
                .args(["--initial-cluster", &format!("default={peer}")])
                .args(["--unsafe-no-fsync", "--log-level", "error"]),
        );
        process.wait("etcd", || match certificates {
            Some(_) => TcpStream::connect(("127.0.0.1", port)).is_ok(),
            None => post(port, "/v3/maintenance/status", "{}").is_some(),
        });
        process
    }

    fn begin(certificates: Option<&Certificates>) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let (port, peer) = (free_port(), free_port());
        let process = Self::run(&folder, port, peer, certificates);
        Self {
            folder,
            port,
            peer,
            tls: certificates.is_some(),
            process,
        }
    }

    fn ask(&self, path: &str, body: &str) -> String {
        let answer = post(self.port, path, body);
        answer.unwrap_or_else(|| panic!("etcd refuses {path} {body}"))
    }
}

impl Kind for Etcd {
    fn start() -> Self {
        Self::begin(None)
    }

    fn start_with_tls(certificates: &Certificates) -> Self {
        Self::begin(Some(certificates))
    }

    fn location(&self, port: Option<u16>) -> Location {
        let port = port.unwrap_or(self.port);
        let tls = if self.tls { "+tls" } else { "" };
        let url = format!("etcd{tls}://127.0.0.1:{port}{PREFIX}");
        url.parse().expect("a URL")
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    fn restart(&mut self, forgets: bool) {
        if forgets {
            std::fs::remove_dir_all(self.folder.path().join("data")).expect("it is there");
        }
        self.process = Self::run(&self.folder, self.port, self.peer, None);
    }

    fn write(&self, nodes: &[(String, Vec<u8>)]) {
        for (path, bytes) in nodes {
            let key = base64(format!("{PREFIX}/{path}").as_bytes());
            let body = format!(r#"{{"key":"{key}","value":"{}"}}"#, base64(bytes));
            self.ask("/v3/kv/put", &body);
        }
    }

    fn protect(&self) -> [Credentials; 2] {
        for (path, body) in [
            ("/v3/auth/user/add", r#"{"name":"root","password":"right"}"#),
            ("/v3/auth/role/add", r#"{"name":"root"}"#),
            ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
            ("/v3/auth/enable", "{}"),
        ] {
            self.ask(path, body);
        }
        ["right", "mistaken"].map(|password| Credentials {
            user: Some(("root".to_owned(), password.to_owned())),
            ..Credentials::default()
        })
    }
}

/// Asks etcd over HTTP. None: it refuses, or is not there.
fn post(port: u16, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for bytes in bytes.chunks(3) {
        let three = [0, 1, 2].map(|place| u32::from(bytes.get(place).copied().unwrap_or(0)));
        let bits = three[0] << 16 | three[1] << 8 | three[2];
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= bytes.len() {
                digit.into()
            } else {
                '='
            });
        }
    }
    text
}

crate::all_cases!(Etcd);
