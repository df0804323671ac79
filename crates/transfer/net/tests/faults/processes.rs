//! Processes that do not take what they are sent, or are killed; and what is left of them.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use support::child::{self, Process};
use support::proxy::{Entry, Fate, Proxy};
use support::raw::{Raw, end_of};
use support::{LONG, body, eventually, listener, secret, soon, with_secret, with_tls};
use treadle_memory::Segments;
use treadle_net::{Address, Config, Listener, NetError, Options, PairEnd, Peer};

use super::{MIB, bytes_only, receive, support, transfer};

/// In another process: sends as much as it can to a receiver that takes nothing at first.
#[test]
#[ignore = "a child process of the next test"]
fn pour() {
    let address: Address = child::argument().parse().unwrap();
    let options = with_secret(&bytes_only());
    let peer = Peer::connect(&address, &options, &mut soon()).unwrap();
    child::tell("connected");
    let large = body(8 * MIB);
    let objects: Vec<_> = (0..32)
        .map(|_| peer.send(1, std::slice::from_ref(&large)).unwrap())
        .collect();
    let small = [7; 1000];
    let messages = (0..100_000).map(|_| (2, small.as_slice()));
    peer.send_many(messages, &mut soon()).unwrap();
    for sending in objects {
        sending.wait(&mut soon()).unwrap();
    }
    peer.close();
    child::tell("sent");
    child::told();
}

#[test]
fn a_receiver_that_does_not_take_stops_its_sender() {
    let listener = listener(&bytes_only());
    let process = Process::start("processes::pour", &listener.address().to_string());
    let peer = listener.accept(&mut soon()).unwrap();
    assert_eq!(process.line(), "connected");
    let received = || peer.stats().bytes_received;
    let mut last = 0;
    eventually("it stops", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = received();
        std::mem::replace(&mut last, now) == now && now > 0
    });
    // The objects that are fetched ahead, and the credit for headers.
    let most = Config::default().prefetch + Config::default().credit;
    assert!(received() <= most, "{} bytes", received());
    let large = body(8 * MIB);
    for _ in 0..32 {
        assert!(receive(&peer).unwrap() == large);
    }
    let mut small = 0;
    while let Ok(bytes) = receive(&peer) {
        assert_eq!(bytes, [7; 1000].as_slice());
        small += 1;
    }
    assert_eq!(small, 100_000);
    assert_eq!(process.line(), "sent");
    let peak = process.peak_memory() as usize;
    assert!(peak < 100 * MIB, "{} MiB", peak / MIB);
}

/// Memory that another process can map.
struct Born {
    start: std::ptr::NonNull<u8>,
    length: usize,
}

// SAFETY: nobody else knows the memory.
unsafe impl Send for Born {}

impl AsRef<[u8]> for Born {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: allocated and filled below, and freed when this value is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Born {
    fn drop(&mut self) {
        // SAFETY: this value owned it.
        unsafe { Segments::global().free(self.start) };
    }
}

fn born_shared(data: &[u8]) -> Bytes {
    let start = Segments::global().allocate(data.len()).unwrap();
    // SAFETY: so many bytes were just allocated.
    unsafe { start.copy_from_nonoverlapping(std::ptr::NonNull::from(data).cast(), data.len()) };
    Bytes::from_owner(Born {
        start,
        length: data.len(),
    })
}

/// Sends until it goes as shared memory: the connection for that is made meanwhile.
fn shared_transfer(from: &Peer, to: &Peer, length: usize) {
    let data = body(length);
    let memory = born_shared(&data);
    eventually("it goes as shared memory", || {
        let sent = from.stats().bytes_sent;
        let shared = from.stats().bytes_shared;
        let sending = from.send(1, std::slice::from_ref(&memory)).unwrap();
        assert!(receive(to).unwrap() == data);
        sending.wait(&mut soon()).unwrap();
        let went_shared = from.stats().bytes_shared > shared;
        assert!(!went_shared || from.stats().bytes_sent == sent);
        went_shared
    });
}

fn near() -> (Listener, Peer, Peer) {
    let listener = listener(&Options::default());
    let options = with_secret(&Options::default());
    let client = Peer::connect(listener.address(), &options, &mut soon()).unwrap();
    let server = listener.accept(&mut soon()).unwrap();
    (listener, client, server)
}

#[test]
fn processes_of_one_host_talk_over_unix_sockets() {
    let (_listener, client, server) = near();
    let here = format!("process {} of this host", std::process::id());
    assert_eq!(server.address(), here);
    transfer(&client, &server, 3 * MIB);
    transfer(&server, &client, 10);
    // As long as both may.
    for others in [bytes_only(), with_tls(&Options::default())] {
        let listener = listener(&others);
        let options = with_secret(&others);
        let client = Peer::connect(listener.address(), &options, &mut soon()).unwrap();
        let server = listener.accept(&mut soon()).unwrap();
        assert!(server.address().starts_with("127.0.0.1:"));
        transfer(&client, &server, 10);
    }
}

/// Whoever closes what comes to the Unix socket, as a listener does that cannot see whose it is,
/// gets it through the port.
#[test]
fn who_is_closed_at_the_unix_socket_comes_through_the_port() {
    let listener = listener(&bytes_only());
    let name = format!("treadle-127.0.0.1:{}", listener.address().port);
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let closing = UnixListener::bind_addr(&name).unwrap();
    let met = std::thread::spawn(move || drop(closing.accept().unwrap()));
    let options = with_secret(&Options::default());
    let client = Peer::connect(listener.address(), &options, &mut soon()).unwrap();
    let server = listener.accept(&mut soon()).unwrap();
    met.join().unwrap();
    assert!(server.address().starts_with("127.0.0.1:"));
    transfer(&client, &server, 10);
}

#[test]
fn shared_memory_is_not_sent() {
    let (_listener, client, server) = near();
    shared_transfer(&client, &server, 3 * MIB + 7);
    shared_transfer(&server, &client, 3 * MIB + 7);
    let both = [&client, &server].map(|side| side.stats().bytes_shared);
    assert_eq!(both, [2 * (3 * MIB as u64 + 7); 2]);
}

/// What a process has of the system, as the kernel names it.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    mappings: usize,
    memory_files: usize,
    sockets: usize,
}

fn holdings() -> Holdings {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let links: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let count = |what: &str| links.iter().filter(|link| link.contains(what)).count();
    Holdings {
        mappings: maps.matches("memfd:").count(),
        memory_files: count("memfd:"),
        sockets: count("socket:"),
    }
}

/// In a process of its own, so that nobody else opens descriptors: the connection for descriptors
/// is cut, by whoever, at any time, and everything comes in bytes.
#[test]
#[ignore = "a child process of the next test"]
fn cut_channel() {
    let entry = Entry::new();
    let listener = listener(&entry.known(&Options::default()));
    // Whoever comes through a proxy has a Unix socket for descriptors only.
    let proxy = Proxy::new(entry, listener.address(), |_, _| Fate::default());
    let options = with_secret(&Options::default());
    let client = Peer::connect(proxy.address(), &options, &mut soon()).unwrap();
    let server = listener.accept(&mut soon()).unwrap();
    eventually("they share memory", || {
        client.shares_memory() && server.shares_memory()
    });
    shared_transfer(&client, &server, 2 * MIB);
    let data = body(2 * MIB);
    let memory = born_shared(&data);
    for round in 0..4 {
        let sendings: Vec<_> = (0..20)
            .map(|number| {
                if number == 7 * round {
                    cut_unix_sockets();
                }
                client.send(1, std::slice::from_ref(&memory)).unwrap()
            })
            .collect();
        for sending in sendings {
            assert!(receive(&server).unwrap() == data);
            sending.wait(&mut soon()).unwrap();
        }
    }
    assert!(client.ended().is_none() && server.ended().is_none());
    assert!(client.stats().bytes_sent > 0);
    child::tell("done");
}

fn cut_unix_sockets() {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let name = entry.unwrap().file_name();
        let number: i32 = name.to_string_lossy().parse().unwrap();
        // SAFETY: open, or the call says that it is not.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let is_unix = rustix::net::sockopt::socket_domain(descriptor)
            .is_ok_and(|domain| domain == rustix::net::AddressFamily::UNIX);
        if is_unix && rustix::net::getpeername(descriptor).is_ok() {
            let _ = rustix::net::shutdown(descriptor, rustix::net::Shutdown::Both);
        }
    }
}

#[test]
fn without_descriptors_everything_comes_in_bytes() {
    let process = Process::start("processes::cut_channel", "");
    assert_eq!(process.line(), "done");
}

/// In another process: a server that sends back what it receives, from its own memory or from
/// shared memory, until it is killed.
#[test]
#[ignore = "a child process of the next tests"]
fn echo() {
    let listener = listener(&Options::default());
    child::tell(&listener.address().to_string());
    let peer = listener.accept(&mut soon()).unwrap();
    let shares = child::argument() == "shared";
    let mut kept = Vec::new();
    while let Ok(bytes) = receive(&peer) {
        let back = if shares {
            born_shared(&bytes)
        } else {
            bytes.clone()
        };
        // The mapping stays until the process is killed.
        kept.push(bytes);
        kept.truncate(20);
        peer.send(1, &[back]).unwrap();
    }
}

/// In a process of its own, so that its descriptors can be counted: meets a server, and what is
/// left when that was killed.
#[test]
#[ignore = "a child process of the next test"]
fn survive() {
    let shares = child::argument();
    let before = {
        // Drivers and pools are there for good.
        let (_listener, client, server) = near();
        shared_transfer(&client, &server, MIB);
        drop((client, server));
        drop(_listener);
        Segments::global().trim();
        eventually("the sockets are closed", || holdings().sockets == 0);
        holdings()
    };
    for _ in 0..3 {
        let mut server = Process::start("processes::echo", &shares);
        let address: Address = server.line().parse().unwrap();
        let options = with_secret(&Options::default());
        let client = Peer::connect(&address, &options, &mut soon()).unwrap();
        let data = body(4 * MIB);
        let memory = if shares == "shared" {
            born_shared(&data)
        } else {
            data.clone()
        };
        let shared = || client.stats().bytes_shared > 0;
        let mut kept = Vec::new();
        while kept.len() < 4 || (shares == "shared" && !shared()) {
            client.send(1, std::slice::from_ref(&memory)).unwrap();
            kept.push(receive(&client).unwrap());
        }
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            server.kill();
        });
        let error = loop {
            let sending = client.send(1, std::slice::from_ref(&memory)).unwrap();
            if let Err(error) = sending.wait(&mut soon()) {
                break error.to_string();
            }
            kept.extend(receive(&client));
            kept.truncate(20);
        };
        assert!(
            error.contains("the connection to the peer broke"),
            "{error}"
        );
        killer.join().unwrap();
        while let Ok(bytes) = receive(&client) {
            kept.push(bytes);
        }
        // What was received outlives its sender.
        assert!(kept.iter().all(|bytes| *bytes == data));
        drop((kept, client, memory));
        Segments::global().trim();
        let start = Instant::now();
        while holdings() != before {
            assert!(
                start.elapsed() < LONG,
                "{:?}, before {before:?}",
                holdings()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    child::tell("well");
}

#[test]
fn nothing_is_left_of_a_killed_server() {
    for kind in ["bytes", "shared"] {
        let process = Process::start("processes::survive", kind);
        assert_eq!(process.line(), "well", "{kind}");
    }
}

/// In another process: a client that sends and receives until it is killed.
#[test]
#[ignore = "a child process of the next test"]
fn exchange() {
    let argument = child::argument();
    let (kind, address) = argument.split_once(' ').unwrap();
    let options = with_secret(&Options::default());
    let client = Peer::connect(&address.parse().unwrap(), &options, &mut soon()).unwrap();
    let data = body(4 * MIB);
    let memory = if kind == "shared" {
        born_shared(&data)
    } else {
        data
    };
    let client = Arc::new(client);
    let sender = Arc::clone(&client);
    std::thread::spawn(move || {
        loop {
            let sending = sender.send(1, std::slice::from_ref(&memory)).unwrap();
            sending.wait(&mut soon()).unwrap();
        }
    });
    while receive(&client).is_ok() {}
}

#[test]
fn a_killed_client_is_an_error_by_name_and_others_go_on() {
    let (listener, other_client, other_server) = near();
    for kind in ["bytes", "shared"] {
        let argument = format!("{kind} {}", listener.address());
        let mut process = Process::start("processes::exchange", &argument);
        let peer = listener.accept(&mut soon()).unwrap();
        let data = body(4 * MIB);
        let memory = born_shared(&data);
        let mut kept = Vec::new();
        while kept.len() < 3 || (kind == "shared" && peer.stats().bytes_shared == 0) {
            kept.push(receive(&peer).unwrap());
        }
        let sendings: Vec<_> = (0..50)
            .map(|_| peer.send(1, std::slice::from_ref(&memory)).unwrap())
            .collect();
        process.kill();
        let end = end_of(&peer);
        assert!(end.contains("the connection to the peer broke"), "{end}");
        for sending in sendings {
            if let Err(error) = sending.wait(&mut soon()) {
                assert!(
                    matches!(error, NetError::Ended(PairEnd::Lost(_))),
                    "{error}"
                );
            }
        }
        let rest = std::iter::from_fn(|| receive(&peer).ok());
        kept.extend(rest);
        assert!(kept.iter().all(|bytes| *bytes == data));
        transfer(&other_client, &other_server, MIB);
        shared_transfer(&other_server, &other_client, MIB);
    }
}

/// In another process: sends back what it gets.
#[test]
#[ignore = "a child process of the next tests"]
fn echo_of_client() {
    let argument = child::argument();
    let (seconds, address) = argument.split_once(' ').unwrap();
    let options = Options {
        patience: Duration::from_secs(seconds.parse().unwrap()),
        connect_timeout: Duration::from_secs(4),
        ..with_secret(&bytes_only())
    };
    let peer = Peer::connect(&address.parse().unwrap(), &options, &mut soon()).unwrap();
    child::tell("connected");
    while let Ok(bytes) = receive(&peer) {
        peer.send(1, &[bytes]).unwrap();
    }
}

#[test]
fn a_client_that_is_stopped_is_waited_for_as_long_as_it_said() {
    let listener = listener(&Options {
        pair: Config {
            timeout: Duration::from_secs(1),
            ..Config::default()
        },
        ..bytes_only()
    });
    let start = |patience| {
        let argument = format!("{patience} {}", listener.address());
        let process = Process::start("processes::echo_of_client", &argument);
        let peer = listener.accept(&mut soon()).unwrap();
        assert_eq!(process.line(), "connected");
        (process, peer)
    };
    let (patient, kept) = start(60);
    let (usual, lost) = start(0);
    Process::pause(&[&patient, &usual], Duration::from_secs(4));
    let end = end_of(&lost);
    assert!(end.contains("silent for 1.0 s"), "{end}");
    assert_eq!(kept.ended(), None);
    let data = body(MIB);
    kept.send(1, std::slice::from_ref(&data)).unwrap();
    assert!(receive(&kept).unwrap() == data);
    // That it has ended is no silence.
    drop(patient);
    let end = end_of(&kept);
    assert!(end.contains("the connection to the peer broke"), "{end}");
}

#[test]
fn who_is_stopped_while_it_connects_is_not_late() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let argument = format!("0 {}", listener.local_addr().unwrap());
    let process = Process::start("processes::echo_of_client", &argument);
    let (stream, _) = listener.accept().unwrap();
    Process::pause(&[&process], Duration::from_secs(6));
    let _raw = Raw::accept(stream, &secret());
    assert_eq!(process.line(), "connected");
}
