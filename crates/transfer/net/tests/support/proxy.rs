//! A network between a client and a listener that does what the test says.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use treadle_net::{Address, Options};

/// The direction in which bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToListener,
    ToClient,
}

/// What happens to the bytes of one direction of a connection, each after so many bytes.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// Both ends are closed.
    pub cut: Option<u64>,
    /// Only the end that receives these bytes is closed; the other hears nothing any more.
    pub cut_receiver: Option<u64>,
    /// Only the end that sends these bytes is closed.
    pub cut_sender: Option<u64>,
    /// Nothing goes on any more, and nothing is closed.
    pub stall: Option<u64>,
    /// A bit of this byte is another one.
    pub flip: Option<u64>,
    /// Each piece waits so long.
    pub delay: Duration,
    /// Bytes a second.
    pub rate: Option<u64>,
}

/// What happens to a connection, numbered in the order of connecting: 0 is the control connection
/// of the first pair.
pub type Plan = dyn Fn(usize, Way) -> Fate + Send + Sync;

struct Shared {
    listener: SocketAddr,
    plan: Box<Plan>,
    /// Bytes a second of all connections together.
    total: Option<u64>,
    /// When the shared line is free again.
    line: Mutex<Instant>,
    over: AtomicBool,
    connections: AtomicUsize,
    sockets: Mutex<Vec<(TcpStream, TcpStream)>>,
}

/// The port of a proxy. A listener that is to be reached through it must know its address.
pub struct Entry {
    socket: TcpListener,
    total: Option<u64>,
}

impl Entry {
    pub fn new() -> Self {
        Self::limited(None)
    }

    /// With so many bytes a second in total.
    pub fn limited(total: Option<u64>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if total.is_some() {
            // What buffers take at once is not the rate of the line.
            socket.set_recv_buffer_size(64 * 1024).unwrap();
        }
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(128).unwrap();
        Self {
            socket: socket.into(),
            total,
        }
    }

    /// With the options of the listener behind it.
    pub fn known(&self, options: &Options) -> Options {
        Options {
            contact: vec![
                self.socket
                    .local_addr()
                    .unwrap()
                    .to_string()
                    .parse()
                    .unwrap(),
            ],
            ..options.clone()
        }
    }
}

pub struct Proxy {
    shared: Arc<Shared>,
    address: Address,
}

impl Proxy {
    pub fn new(
        entry: Entry,
        listener: &Address,
        plan: impl Fn(usize, Way) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let Entry { socket, total } = entry;
        let address = Address {
            port: socket.local_addr().unwrap().port(),
            ..listener.clone()
        };
        let shared = Arc::new(Shared {
            listener: format!("127.0.0.1:{}", listener.port).parse().unwrap(),
            plan: Box::new(plan),
            total,
            line: Mutex::new(Instant::now()),
            over: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            sockets: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in socket.incoming() {
                if own.over.load(Ordering::Relaxed) {
                    return;
                }
                own.connect(client.unwrap());
            }
        });
        Self { shared, address }
    }

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Cuts a connection now.
    pub fn cut(&self, connection: usize) {
        if let Some((client, server)) = self.shared.sockets.lock().unwrap().get(connection) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for connection in 0..self.connections() {
            self.cut(connection);
        }
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.address.port));
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.listener) else {
            return;
        };
        for socket in [&client, &server] {
            socket.set_nodelay(true).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(100)))
                .unwrap();
        }
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let copy = |socket: &TcpStream| socket.try_clone().unwrap();
        let entry = (copy(&client), copy(&server));
        self.sockets.lock().unwrap().push(entry);
        // Whether the end of one side is kept from the other.
        let quiet = Arc::new(AtomicBool::new(false));
        for (way, from, to) in [
            (Way::ToListener, copy(&client), copy(&server)),
            (Way::ToClient, server, client),
        ] {
            let fate = (self.plan)(number, way);
            let own = Arc::clone(self);
            let quiet = Arc::clone(&quiet);
            std::thread::spawn(move || own.pump(from, to, &fate, &quiet));
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, fate: &Fate, quiet: &AtomicBool) {
        let mut buffer = vec![0; 64 * 1024];
        let mut passed = 0u64;
        let mut free = Instant::now();
        let limits = [fate.cut, fate.cut_receiver, fate.cut_sender, fate.stall];
        let limit = limits.into_iter().flatten().min().unwrap_or(u64::MAX);
        while !self.over.load(Ordering::Relaxed) {
            if passed == limit {
                if fate.cut.is_some() {
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                    return;
                }
                quiet.store(true, Ordering::Relaxed);
                if fate.cut_receiver.is_some() {
                    let _ = to.shutdown(Shutdown::Both);
                }
                if fate.cut_sender.is_some() {
                    let _ = from.shutdown(Shutdown::Both);
                }
                self.until_over();
                return;
            }
            let most = (limit - passed).min(buffer.len() as u64) as usize;
            let count = match from.read(&mut buffer[..most]) {
                Ok(0) | Err(_) if quiet.load(Ordering::Relaxed) => {
                    self.until_over();
                    return;
                }
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(count) => count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => {
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            };
            if let Some(flip) = fate.flip
                && (passed..passed + count as u64).contains(&flip)
            {
                buffer[(flip - passed) as usize] ^= 4;
            }
            std::thread::sleep(fate.delay);
            if let Some(rate) = fate.rate {
                free = free.max(Instant::now()) + takes(count, rate);
                std::thread::sleep(free.saturating_duration_since(Instant::now()));
            }
            if let Some(rate) = self.total {
                let mut line = self.line.lock().unwrap();
                *line = (*line).max(Instant::now()) + takes(count, rate);
                let until = *line;
                drop(line);
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            if to.write_all(&buffer[..count]).is_err() {
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
            passed += count as u64;
        }
    }

    /// Keeps the sockets open.
    fn until_over(&self) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn takes(bytes: usize, rate: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate as f64)
}
