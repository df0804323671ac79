//! Pages for those who watch the cluster: who has the token.
//!
//! One request a connection, read only, few at a time: what a browser, `curl` or Prometheus need.
//! A connection has a limit in time for each thing that it does, however slowly it does it.

mod request;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use treadle_net::secret;

use self::request::{Gate, LONGEST, Wanted};
use super::Pages;
use super::mailbox::{Letter, Mailbox};
use crate::{NodeError, caught, thread};

/// Connections at a time; more are turned away.
const MOST: usize = 16;
/// How long a connection may take until its answer is there, and then to read it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long what a connection still says is read.
const FAREWELL: Duration = Duration::from_secs(1);

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
    link: String,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    pub(super) fn start(pages: Pages, mailbox: &Arc<Mailbox>) -> Result<Self, NodeError> {
        let failed = |error: io::Error| NodeError::Http {
            address: pages.address.to_string(),
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(pages.address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = pages
            .token
            .unwrap_or_else(|| secret::hex(&secret::random::<16>()));
        let link = format!("http://{address}/?token={token}");
        let mut names = pages.names;
        names.extend(own_name());
        let is_over = Arc::new(AtomicBool::new(false));
        let door = Door {
            gate: Gate::new(token, names, address.ip()),
            mailbox: Arc::clone(mailbox),
            open: AtomicUsize::new(0),
        };
        let over = Arc::clone(&is_over);
        let body = move || serve(&listener, &over, &Arc::new(door));
        let thread = thread::start("treadle-http", body).map_err(failed)?;
        Ok(Self {
            address,
            link,
            is_over,
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the pages are, with what lets in.
    pub(super) fn link(&self) -> &str {
        &self.link
    }
}

/// The name of this machine.
fn own_name() -> Option<String> {
    let system = rustix::system::uname();
    Some(system.nodename().to_str().ok()?.to_owned())
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

/// What connections share.
struct Door {
    gate: Gate,
    mailbox: Arc<Mailbox>,
    /// How many there are.
    open: AtomicUsize,
}

fn serve(listener: &TcpListener, is_over: &AtomicBool, door: &Arc<Door>) {
    for stream in listener.incoming() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else {
            // Out of descriptors, for one: others may give some back.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if door.open.load(Ordering::Relaxed) >= MOST {
            let busy = Answer::of(503, "too many connections\n");
            // It fits into the socket's buffer: this does not wait.
            let _ = busy.send(&mut stream, false, Instant::now() + FAREWELL);
            continue;
        }
        door.open.fetch_add(1, Ordering::Relaxed);
        let through = Arc::clone(door);
        let spawned = thread::start("treadle-http-1", move || {
            // A client that is gone, or says nothing that can be answered; and a panic, which is the
            // end of this connection only.
            let _ = caught(|| {
                through
                    .converse(&mut stream)
                    .and_then(|()| linger(&mut stream))
            });
            through.open.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            door.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// How long there is until then.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

impl Door {
    fn converse(&self, stream: &mut TcpStream) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let local: IpAddr = stream.local_addr()?.ip().to_canonical();
        let mut said = Vec::new();
        let parsed = loop {
            stream.set_read_timeout(Some(left(until)?))?;
            let mut part = [0; 1024];
            let count = stream.read(&mut part)?;
            if count == 0 {
                return Ok(());
            }
            said.extend_from_slice(&part[..count]);
            match self.gate.parse(&said, local) {
                Ok(Some(request)) => break Ok(request),
                Ok(None) => {}
                Err(refusal) => break Err(refusal),
            }
        };
        let (answer, is_head) = match parsed {
            Ok(request) => (self.answer(request.wanted, until), request.is_head),
            Err(refusal) => (Answer::of(refusal.status, refusal.text), false),
        };
        answer.send(stream, is_head, Instant::now() + PATIENCE)
    }

    fn answer(&self, wanted: Wanted, until: Instant) -> Answer {
        let (page, kind) = match wanted {
            Wanted::Health => return Answer::of(200, "ok\n"),
            Wanted::Index => return Answer::of(200, "/health /metrics /json/state\n"),
            Wanted::Page(Page::Metrics) => (Page::Metrics, "text/plain; version=0.0.4"),
            Wanted::Page(Page::State) => (Page::State, "application/json"),
        };
        let (reply, answer) = sync_channel(1);
        self.mailbox.post(Letter::Page(page, reply));
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(text) => Answer {
                status: 200,
                kind,
                text,
            },
            Err(_) => Answer::of(503, "the scheduler is busy, or gone\n"),
        }
    }
}

/// Reads what the client still says: closing with something unread would take the answer from it.
fn linger(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    let until = Instant::now() + FAREWELL;
    let mut room = 16 * LONGEST;
    while room > 0 {
        stream.set_read_timeout(Some(left(until)?))?;
        let count = stream.read(&mut [0; 4096])?;
        if count == 0 {
            break;
        }
        room = room.saturating_sub(count);
    }
    Ok(())
}

struct Answer {
    status: u16,
    kind: &'static str,
    text: String,
}

impl Answer {
    fn of(status: u16, text: impl Into<String>) -> Self {
        let (kind, text) = ("text/plain; charset=utf-8", text.into());
        Self { status, kind, text }
    }

    fn send(&self, stream: &mut TcpStream, is_head: bool, until: Instant) -> io::Result<()> {
        let (status, kind) = (self.status, self.kind);
        let (reason, more) = match status {
            200 => ("OK", ""),
            400 => ("Bad Request", ""),
            401 => ("Unauthorized", "WWW-Authenticate: Bearer\r\n"),
            403 => ("Forbidden", ""),
            404 => ("Not Found", ""),
            405 => ("Method Not Allowed", "Allow: GET, HEAD\r\n"),
            431 => ("Request Header Fields Too Large", ""),
            _ => ("Service Unavailable", "Retry-After: 1\r\n"),
        };
        // The address of a page holds the token: where links on it lead is not told.
        let head = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\n{more}Connection: close\r\n\r\n",
            self.text.len()
        );
        let body = if is_head { "" } else { &self.text };
        for mut part in [head.as_bytes(), body.as_bytes()] {
            while !part.is_empty() {
                stream.set_write_timeout(Some(left(until)?))?;
                match stream.write(part)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    count => part = &part[count..],
                }
            }
        }
        stream.flush()
    }
}
