//! Clients that break the rules, over real sockets: each is closed in order, memory stays bounded,
//! and others on the same listener do not notice.

#[path = "hostile/descriptors.rs"]
mod descriptors;
#[path = "hostile/relayed.rs"]
mod relayed;
mod support;
#[path = "hostile/violations.rs"]
mod violations;

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use prost::Message as _;
use support::child::{self, Process};
use support::raw::{Raw, dial, hello, hello_to, last_words, object, preamble};
use support::{body, listener, secret, soon, with_secret, with_tls};
use treadle_net::wire::{self, proto};
use treadle_net::{Address, Listener, Options, Peer};
use treadle_security::secret::Secret;
use treadle_transfer::Message;
use treadle_transfer::layout::MAX_BYTES;
use violations::until_closed;

/// A listener, and an honest pair on it.
struct Scene {
    listener: Listener,
    client: Peer,
    server: Peer,
}

impl Scene {
    fn new(options: &Options) -> Self {
        let listener = listener(options);
        let (client, server) = meet(&listener, options);
        Self {
            listener,
            client,
            server,
        }
    }

    fn address(&self) -> &Address {
        self.listener.address()
    }

    /// The first words of a client that means this listener.
    fn hello(&self, role: proto::Role) -> proto::Hello {
        hello_to(self.address(), role)
    }

    /// A control connection, and the listener's end of it.
    fn attack(&self) -> (Raw, Peer) {
        let raw = Raw::control(self.address());
        (raw, self.listener.accept(&mut soon()).unwrap())
    }

    /// The honest pair goes on, and another one can be made.
    fn is_well(&self) {
        transfer(&self.client, &self.server);
        let (client, server) = meet(&self.listener, &Options::default());
        transfer(&client, &server);
        transfer(&server, &client);
    }
}

fn meet(listener: &Listener, options: &Options) -> (Peer, Peer) {
    let options = Options {
        // Nobody has to wait for the deadlines of others.
        connect_timeout: Duration::from_secs(15),
        ..with_secret(options)
    };
    let client = Peer::connect(listener.address(), &options, &mut soon()).unwrap();
    (client, listener.accept(&mut soon()).unwrap())
}

fn transfer(from: &Peer, to: &Peer) {
    let data = body(300_000);
    let sending = from.send(1, std::slice::from_ref(&data)).unwrap();
    let incoming = to.next(&mut soon()).unwrap();
    incoming.accept(Vec::new()).unwrap();
    incoming.wait(&mut soon()).unwrap();
    assert!(incoming.take().unwrap().frames[0].as_slice() == data);
    sending.wait(&mut soon()).unwrap();
}

/// The reason after the preamble and `Hello` in what a listener said.
fn refusal(words: &[u8]) -> String {
    let hello = wire::decode_preamble(words).unwrap().unwrap();
    let proof = &words[wire::PREAMBLE + hello + 4..];
    proto::Proof::decode(proof).unwrap().refused
}

#[test]
fn strangers_are_sent_away() {
    let scene = Scene::new(&Options::default());
    let valid = preamble(&scene.hello(proto::Role::Control));
    let with_length = |length: u32| {
        let mut bytes = valid[..wire::PREAMBLE].to_vec();
        bytes[12..].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    let then = |bytes: &[u8]| [valid.as_slice(), bytes].concat();
    let strangers = [
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("tls", vec![22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]),
        ("ssh", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        ("zeros", vec![0; 100_000]),
        ("almost", b"TREADLE\r".to_vec()),
        ("huge hello", with_length(u32::MAX)),
        ("large hello", with_length(wire::MAX_HELLO as u32 + 1)),
        ("no hello", [with_length(5), vec![0xff; 5]].concat()),
        ("huge proof", then(&u32::MAX.to_le_bytes())),
        ("no proof", then(&[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])),
    ];
    for (name, bytes) in strangers {
        let mut stream = dial(scene.address());
        // It may be closed before everything is written.
        let _ = stream.write_all(&bytes);
        last_words(&mut stream);
        drop(stream);
        transfer(&scene.client, &scene.server);
        assert!(scene.listener.try_accept().unwrap().is_none(), "{name}");
    }
    scene.is_well();
}

#[test]
fn who_is_refused_is_told_why() {
    let scene = Scene::new(&Options::default());
    let no_secret = proto::Hello {
        proves: false,
        ..scene.hello(proto::Role::Control)
    };
    let unknown_session = proto::Hello {
        session: 1,
        ..scene.hello(proto::Role::StripeToListener)
    };
    let no_such_role = proto::Hello {
        role: 99,
        ..scene.hello(proto::Role::Control)
    };
    for (hello, reason) in [
        (no_secret, "only one side has a secret"),
        (unknown_session, "no such session"),
        (no_such_role, "cannot be used for that"),
        (
            scene.hello(proto::Role::Unspecified),
            "cannot be used for that",
        ),
        (
            scene.hello(proto::Role::Descriptors),
            "cannot be used for that",
        ),
    ] {
        let mut stream = dial(scene.address());
        stream.write_all(&preamble(&hello)).unwrap();
        let words = last_words(&mut stream);
        assert!(refusal(&words).contains(reason), "{}", refusal(&words));
    }
    let other = Secret::new([8; 32]).unwrap();
    let hello = scene.hello(proto::Role::Control);
    let refused = Raw::open(dial(scene.address()), &hello, &other).err();
    assert!(refused.unwrap().contains("its secret is another one"));
    scene.is_well();
}

#[test]
fn another_version_is_named_on_both_sides() {
    let scene = Scene::new(&Options::default());
    let mut bytes = preamble(&scene.hello(proto::Role::Control));
    bytes[8] = 9;
    let mut stream = dial(scene.address());
    stream.write_all(&bytes).unwrap();
    // A client of version 9 says what this is.
    let words = last_words(&mut stream);
    assert_eq!(wire::decode_preamble(&words), Ok(Some(0)));
    scene.is_well();

    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let fake = std::thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        let mut bytes = preamble(&proto::Hello::default());
        bytes[8..12].copy_from_slice(&[9, 0, 3, 0]);
        stream.write_all(&bytes).unwrap();
        last_words(&mut stream);
    });
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    let error = Peer::connect(&address, &with_secret(&Options::default()), &mut soon());
    let error = error.unwrap_err().to_string();
    let ours = wire::VERSION.to_string();
    assert!(error.contains(&ours) && error.contains("9.3"), "{error}");
    fake.join().unwrap();
}

#[test]
fn a_handshake_may_end_at_every_byte() {
    let scene = Scene::new(&Options::default());
    let (raw, victim) = scene.attack();
    let bytes = raw.recorded.clone();
    for length in 0..bytes.len() {
        let mut stream = dial(scene.address());
        stream.write_all(&bytes[..length]).unwrap();
        if length % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
            last_words(&mut stream);
        }
    }
    assert!(victim.ended().is_none());
    scene.is_well();
}

#[test]
fn a_recorded_handshake_opens_nothing() {
    let scene = Scene::new(&Options::default());
    let (control, victim) = scene.attack();
    let stripe = control.stripe(scene.address(), 1);
    for recorded in [&control.recorded, &stripe.recorded] {
        let mut stream = dial(scene.address());
        stream.write_all(recorded).unwrap();
        let words = last_words(&mut stream);
        let told = String::from_utf8_lossy(&words);
        assert!(told.contains("its secret is another one"), "{told}");
    }
    assert!(victim.ended().is_none());
    assert!(scene.listener.try_accept().unwrap().is_none());
    scene.is_well();
}

#[test]
fn nobody_joins_the_pair_of_another() {
    let scene = Scene::new(&Options::default());
    let (one, first) = scene.attack();
    let (other, second) = scene.attack();
    for role in [proto::Role::StripeToListener, proto::Role::StripeToClient] {
        let nothing = Secret::new([0; 32]).unwrap();
        for key in [&other.session_secret, &secret(), &nothing] {
            let hello = proto::Hello {
                session: one.hello.session,
                ..scene.hello(role)
            };
            let refused = Raw::open(dial(scene.address()), &hello, key).err();
            assert!(refused.unwrap().contains("its secret is another one"));
        }
    }
    assert!(first.ended().is_none() && second.ended().is_none());
    scene.is_well();
}

/// Connections that say nothing, or next to nothing, do not keep others out, and are closed.
#[test]
fn silent_connections_make_room() {
    let scene = Scene::new(&Options::default());
    let magic = preamble(&scene.hello(proto::Role::Control));
    let mut silent: Vec<TcpStream> = (0..900)
        .map(|number| {
            let mut stream = dial(scene.address());
            stream.write_all(&magic[..number % 20]).unwrap();
            stream
        })
        .collect();
    // One that goes on saying a little does not last longer.
    let mut slow = dial(scene.address());
    let loris = std::thread::spawn(move || {
        let pace = Duration::from_millis(250);
        slow.set_read_timeout(Some(pace)).unwrap();
        magic.iter().cycle().take(240).any(|byte| {
            let waits = |error: &std::io::Error| {
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            };
            slow.write_all(&[*byte]).is_err() || !slow.peek(&mut [0]).is_err_and(|e| waits(&e))
        })
    });
    // A new client comes first: it waits for those before it, not for their deadlines.
    drop(meet(&scene.listener, &Options::default()));
    scene.is_well();
    assert!(loris.join().unwrap(), "it may go on for ever");
    for stream in &mut silent {
        last_words(stream);
    }
    scene.is_well();
}

#[test]
fn tls_and_plain_bytes_do_not_mix() {
    let options = with_tls(&Options::default());
    let secure = listener(&options);
    // The secret is proved, too.
    let options = with_secret(&options);
    let together = || {
        let client = Peer::connect(secure.address(), &options, &mut soon()).unwrap();
        let server = secure.accept(&mut soon()).unwrap();
        transfer(&client, &server);
        transfer(&server, &client);
        (client, server)
    };
    let (client, server) = together();
    let valid = preamble(&hello(proto::Role::Control));
    for bytes in [
        valid.as_slice(),
        b"GET / HTTP/1.1\r\n\r\n",
        &[22, 3, 1, 0xff, 0xff],
        &[23, 3, 3, 0, 20],
        &[22, 3, 1, 0, 5, 1, 0, 0, 0xff, 0xff],
    ] {
        let mut stream = dial(secure.address());
        stream.write_all(bytes).unwrap();
        // Some are the start of what may become a handshake.
        stream.shutdown(Shutdown::Write).unwrap();
        last_words(&mut stream);
    }
    let plain = Address {
        tls: false,
        ..secure.address().clone()
    };
    let refused = Peer::connect(&plain, &with_secret(&Options::default()), &mut soon());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("TLS"), "{refused}");
    let scene = Scene::new(&Options::default());
    let open = Address {
        tls: true,
        ..scene.address().clone()
    };
    let refused = Peer::connect(&open, &options, &mut soon())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("TLS"), "{refused}");
    scene.is_well();
    transfer(&client, &server);
    together();
}

/// In another process, whose memory can be measured: an honest server for everybody.
#[test]
#[ignore = "a child process of the next test"]
fn serve() {
    let listener = listener(&Options::default());
    child::tell(&listener.address().to_string());
    loop {
        let Ok(peer) = listener.accept(&mut soon()) else {
            continue;
        };
        std::thread::spawn(move || {
            while let Ok(incoming) = peer.next(&mut soon()) {
                match incoming.accept(Vec::new()) {
                    Ok(_) if incoming.wait(&mut soon()).is_ok() => {
                        let received = incoming.take().unwrap();
                        let frames: Vec<_> = received
                            .frames
                            .into_iter()
                            .map(treadle_net::Frame::into_bytes)
                            .collect();
                        let _ = peer.send(received.kind, &frames);
                    }
                    Ok(_) => {}
                    Err(error) => incoming.refuse(&error.to_string()),
                }
            }
        });
    }
}

#[test]
fn memory_stays_bounded() {
    const MIB: u64 = 1 << 20;
    let process = Process::start("serve", "");
    let address: Address = process.line().parse().unwrap();
    let options = with_secret(&Options::default());
    let client = Peer::connect(&address, &options, &mut soon()).unwrap();
    let echo = || {
        let data = body(300_000);
        client.send(1, std::slice::from_ref(&data)).unwrap();
        let incoming = client.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        assert!(incoming.take().unwrap().frames[0].as_slice() == data);
    };
    echo();
    let before = process.peak_memory();
    let addresses = process.peak_addresses();

    // Lengths that nothing follows.
    let valid = preamble(&hello(proto::Role::Control));
    let held: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = dial(&address);
            let mut bytes = valid[..wire::PREAMBLE].to_vec();
            bytes[12..].copy_from_slice(&(wire::MAX_HELLO as u32).to_le_bytes());
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    let mut half_frame = Raw::control(&address);
    half_frame.write(&[0, 0, 11, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    echo();
    drop(held);

    // Objects that nobody has the memory for, in one piece and in many.
    for sizes in [vec![MAX_BYTES], vec![MAX_BYTES / 60_000; 60_000]] {
        let mut raw = Raw::control(&address);
        raw.write(&object(1, &sizes, false, b""));
        let refused = raw.until(|message| matches!(message, Message::Refuse { .. }));
        let Message::Refuse { reason, .. } = refused else {
            unreachable!("asked for")
        };
        assert!(!reason.is_empty());
        echo();
    }
    let limit = treadle_memory::memory_limit();
    let reserved = process.peak_addresses() - addresses;
    assert!(reserved < limit, "{reserved} bytes, limit {limit}");

    // Headers beyond the credit, taken by nobody: the first object is never complete.
    let mut raw = Raw::control(&address);
    raw.write(&object(1, &[1 << 20], false, b""));
    for number in 2.. {
        let sizes = vec![0; if number % 2 > 0 { 60_000 } else { 1 }];
        if raw
            .stream
            .write_all(&object(number, &sizes, false, b""))
            .is_err()
        {
            break;
        }
    }
    echo();

    // Questions whose answers nobody reads.
    let mut deaf = Raw::control(&address);
    let mut frames = Vec::new();
    while frames.len() < 64 * 1024 {
        wire::encode_message(&Message::Ping { token: 7 }, &mut frames);
    }
    until_closed(&mut deaf.stream, &frames);
    echo();

    let grown = process.peak_memory() - before;
    assert!(grown < 64 * MIB, "{} MiB", grown / MIB);
}
