//! Pages for those who watch the cluster.
//!
//! One request a connection, read only, few at a time: what a browser, `curl` or Prometheus need.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::mailbox::{Letter, Mailbox};
use crate::NodeError;

/// Connections at a time; more are turned away.
const MOST: usize = 16;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request.
const LONGEST: usize = 8 * 1024;

/// A page that the scheduler's thread writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    Metrics,
    State,
}

/// The server of pages.
#[derive(Debug)]
pub(super) struct Http {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    pub(super) fn start(address: SocketAddr, mailbox: &Arc<Mailbox>) -> Result<Self, NodeError> {
        let failed = |error: io::Error| NodeError::Http {
            address: address.to_string(),
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, mailbox) = (Arc::clone(&is_over), Arc::clone(mailbox));
        let thread = std::thread::Builder::new()
            .name("treadle-http".into())
            .spawn(move || serve(&listener, &over, &mailbox))
            .map_err(failed)?;
        Ok(Self {
            address,
            is_over,
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread waits for somebody to connect.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let knocked = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        if let (Ok(_), Some(thread)) = (knocked, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, is_over: &AtomicBool, mailbox: &Arc<Mailbox>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else {
            // Out of descriptors, for one: others may give some back.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.load(Ordering::Relaxed) >= MOST {
            let _ = respond(&mut stream, 503, "text/plain", "too many connections\n");
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (mailbox, counted) = (Arc::clone(mailbox), Arc::clone(&open));
        let spawned = std::thread::Builder::new()
            .name("treadle-http-1".into())
            .spawn(move || {
                // A client that is gone, or says nothing that can be answered.
                let _ = converse(&mut stream, &mailbox).and_then(|()| linger(&mut stream));
                counted.fetch_sub(1, Ordering::Relaxed);
            });
        if spawned.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn converse(stream: &mut TcpStream, mailbox: &Mailbox) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let (method, path) = loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..count]);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(&request) {
            Ok(httparse::Status::Complete(_)) => {
                let method = parsed.method.unwrap_or_default().to_owned();
                let path = parsed.path.unwrap_or_default();
                let path = path.split('?').next().unwrap_or_default().to_owned();
                break (method, path);
            }
            Ok(httparse::Status::Partial) if request.len() < LONGEST => {}
            Ok(httparse::Status::Partial) => {
                return respond(stream, 431, "text/plain", "the request is too long\n");
            }
            Err(error) => return respond(stream, 400, "text/plain", &format!("{error}\n")),
        }
    };
    if method != "GET" && method != "HEAD" {
        return respond(stream, 405, "text/plain", "pages are read with GET\n");
    }
    let (page, kind) = match path.as_str() {
        "/health" => return respond(stream, 200, "text/plain", "ok\n"),
        // `/status` is where dashboards of Dask are, and what people are sent to.
        "/" | "/status" => {
            return respond(stream, 200, "text/plain", "/health /metrics /json/state\n");
        }
        "/metrics" => (Page::Metrics, "text/plain; version=0.0.4"),
        "/json/state" => (Page::State, "application/json"),
        _ => return respond(stream, 404, "text/plain", "there is no such page\n"),
    };
    let (reply, answer) = sync_channel(1);
    mailbox.post(Letter::Page(page, reply));
    match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(text) => respond(stream, 200, kind, &text),
        Err(_) => respond(
            stream,
            503,
            "text/plain",
            "the scheduler is busy, or gone\n",
        ),
    }
}

/// Reads what the client still says: closing with something unread would take the answer from it.
fn linger(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut left = 16 * LONGEST;
    while left > 0 {
        let count = stream.read(&mut [0; 4096])?;
        if count == 0 {
            break;
        }
        left = left.saturating_sub(count);
    }
    Ok(())
}

fn respond(stream: &mut TcpStream, status: u16, kind: &str, text: &str) -> io::Result<()> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())?;
    stream.flush()
}
