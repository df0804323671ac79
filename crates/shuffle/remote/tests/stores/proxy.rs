//! A proxy before a server, which disturbs connections.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What is done to a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its first request is answered with status 503.
    Busy,
    /// It ends after so many bytes of each direction.
    Cut,
    /// Each piece waits.
    Slow,
}

/// Bytes of a direction after which a connection is cut, and how long a piece of a slow one waits.
const CUT: usize = 300_000;
const WAIT: Duration = Duration::from_millis(2);

struct Shared {
    fault: Mutex<(Fault, usize)>,
    disturbed: AtomicUsize,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens, and passes on to `server`.
    pub(crate) fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            fault: Mutex::new((Fault::Busy, 0)),
            disturbed: AtomicUsize::new(0),
        });
        let (server, with) = (server.to_string(), Arc::clone(&shared));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, shared) = (server.clone(), Arc::clone(&with));
                thread::spawn(move || serve(client, &server, &shared));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the first so many requests meet this.
    pub(crate) fn disturb(&self, fault: Fault, times: usize) {
        *self.shared.fault.lock().unwrap() = (fault, times);
    }

    /// How many were disturbed.
    pub(crate) fn disturbed(&self) -> usize {
        self.shared.disturbed.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// The fault of the next request.
    fn next(&self) -> Option<Fault> {
        let mut fault = self.fault.lock().unwrap();
        let left = fault.1.checked_sub(1)?;
        if fault.1 != usize::MAX {
            fault.1 = left;
        }
        self.disturbed.fetch_add(1, Ordering::Relaxed);
        Some(fault.0)
    }
}

/// Passes one connection on. Each has one request: the answer says that it ends.
fn serve(mut client: TcpStream, server: &str, shared: &Shared) {
    let fault = shared.next();
    let Some(head) = head(&mut client) else {
        return;
    };
    if fault == Some(Fault::Busy) {
        let answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let _ = client.write_all(answer.as_bytes());
        drain(client);
        return;
    }
    let Ok(mut upstream) = TcpStream::connect(server) else {
        return;
    };
    // The next request comes on a connection of its own.
    let head = String::from_utf8_lossy(&head).replacen("\r\n", "\r\nConnection: close\r\n", 1);
    if upstream.write_all(head.as_bytes()).is_err() {
        return;
    }
    let (from, to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
    let up = thread::spawn(move || pass(from, to, fault));
    pass(upstream, client, fault);
    let _ = up.join();
}

/// The head of a request, and what came with it.
fn head(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(head)
}

/// Reads what a client still sends, so that it reads the answer.
fn drain(mut client: TcpStream) {
    let _ = client.shutdown(Shutdown::Write);
    let _ = client.set_read_timeout(Some(Duration::from_secs(10)));
    let mut piece = vec![0; 1 << 16];
    while client.read(&mut piece).is_ok_and(|count| count > 0) {}
}

fn pass(mut from: TcpStream, mut to: TcpStream, fault: Option<Fault>) {
    let mut piece = vec![0; 1 << 16];
    let mut passed = 0;
    while let Ok(count) = from.read(&mut piece)
        && count > 0
    {
        if fault == Some(Fault::Slow) {
            thread::sleep(WAIT);
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
        passed += count;
        if fault == Some(Fault::Cut) && passed > CUT {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
