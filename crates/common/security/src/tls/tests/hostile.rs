use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

use super::*;

#[test]
fn a_cut_connection_is_no_end_of_data() {
    let mut pair = open_pair();
    write(&mut pair.client, &mut pair.here, b"half of").unwrap();
    drop(pair.here);
    assert_eq!(
        read(&mut pair.server, &mut pair.there, 100).unwrap(),
        b"half of"
    );
    let cut = read(&mut pair.server, &mut pair.there, 100).unwrap_err();
    assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    assert!(cut.to_string().contains("cut short"), "{cut}");
    assert!(pair.server.has_pending_plaintext());
}

#[test]
fn what_came_before_damage_comes_first() {
    let mut pair = open_pair();
    write(&mut pair.client, &mut pair.here, b"before").unwrap();
    pair.here.write_all(b"GET / HTTP/1.1").unwrap();
    for part in [b"bef", b"ore"] {
        assert_eq!(read(&mut pair.server, &mut pair.there, 3).unwrap(), part);
        assert!(pair.server.has_pending_plaintext());
    }
    let error = read(&mut pair.server, &mut pair.there, 3).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[test]
fn a_peer_that_leaves_during_the_handshake_is_named_as_that() {
    let node = Ca::new().node(NODE_NAME, 1);
    for (reads, kind) in [
        (true, io::ErrorKind::UnexpectedEof),
        (false, io::ErrorKind::ConnectionReset),
    ] {
        let mut pair = pair(&node, &node);
        pair.client.flush(&mut pair.here).unwrap();
        if reads {
            let _hello = pair.there.read(&mut [0; 10_000]).unwrap();
        }
        drop(pair.there);
        let cut = read(&mut pair.client, &mut pair.here, 1).unwrap_err();
        assert_eq!(cut.kind(), kind);
        let hint = "does the peer expect TLS";
        assert!(cut.to_string().contains(hint), "{cut}");
    }
}

#[test]
fn garbage_is_refused_at_its_first_byte() {
    let node = Ca::new().node(NODE_NAME, 1);
    for garbage in [&b"GET / HTTP/1.1\r\n"[..], b"T", &[22, 9, 9], &[0; 40]] {
        let (mut here, mut there) = unix_pair();
        here.write_all(garbage).unwrap();
        let mut server = Tls::server(node.server_config().unwrap()).unwrap();
        let error = read(&mut server, &mut there, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    }
}

#[test]
fn hostile_handshakes_end_within_bounds() {
    let node = Ca::new().node(NODE_NAME, 1);
    let too_long = [22, 3, 1, 0xff, 0xff];
    // A message of 16 MiB that begins and never ends, in records of 16 KiB.
    let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    endless.resize(5 + 0x4000, 0);
    let not_a_hello = [22, 3, 1, 0, 4, 99, 0, 0, 0];
    for bytes in [&too_long[..], &endless, &not_a_hello] {
        let (mut here, mut there) = unix_pair();
        let mut server = Tls::server(node.server_config().unwrap()).unwrap();
        let error = (0..4)
            .find_map(|_| {
                let _ = here.write(bytes);
                refusal(read(&mut server, &mut there, 1))
            })
            .expect("it is refused before 64 KiB of it are kept");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}

#[test]
fn random_bytes_in_place_of_any_message_never_panic() {
    let node = Ca::new().node(NODE_NAME, 1);
    let mut random = Random::new(9);
    for round in 0..500 {
        let mut pair = pair(&node, &node);
        // Each side's messages are changed on their way, at a random place, at a random time.
        let changed = random.index(6);
        for turn in 0..6 {
            let mut wire = vec![0; 1 << 16];
            let _ = pair.client.flush(&mut pair.here);
            if turn == changed
                && let Ok(count) = pair.there.read(&mut wire)
            {
                for _ in 0..1 + random.index(3) {
                    let place = random.index(count);
                    wire[place] = random.next() as u8;
                }
                let mut again = pair.here.try_clone().unwrap();
                again.write_all(&wire[..count]).unwrap();
            }
            let answer = read(&mut pair.server, &mut pair.there, 10);
            assert!(answer.is_err(), "round {round}: nothing was sent");
            let _ = pair.server.flush(&mut pair.there);
            let answer = read(&mut pair.client, &mut pair.here, 10);
            assert!(answer.is_err(), "round {round}: nothing was sent");
        }
    }
}

#[test]
fn a_bit_that_flips_anywhere_in_a_record_is_found() {
    let length = 5_000 + OVERHEAD;
    for bit in [0, 3 * 8, 4 * 8, 5 * 8 + 1, 2_500 * 8, length * 8 - 1] {
        for room in [100, 10_000] {
            let mut pair = open_pair();
            write(&mut pair.client, &mut pair.here, b"before").unwrap();
            write(&mut pair.client, &mut pair.here, &[7; 5_000]).unwrap();
            let mut wire = vec![0; 6 + OVERHEAD + length];
            pair.there.read_exact(&mut wire).unwrap();
            wire[6 + OVERHEAD + bit / 8] ^= 1 << (bit % 8);
            pair.here.write_all(&wire).unwrap();
            drop(pair.here);
            let before = read(&mut pair.server, &mut pair.there, room).unwrap();
            assert_eq!(before, b"before");
            let error = match read(&mut pair.server, &mut pair.there, room) {
                // What `rustls` says that it authenticates is the type as it should be.
                Ok(whole) if bit == 0 => {
                    assert_eq!(whole, vec![7; room.min(5_000)]);
                    continue;
                }
                answer => answer.unwrap_err(),
            };
            let kinds = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "bit {bit}: {error}");
            let again = read(&mut pair.server, &mut pair.there, room).unwrap_err();
            assert_eq!(again.to_string(), error.to_string());
        }
    }
}

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A client that has shown its certificate, and then seals whatever it likes.
struct Forger {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    socket: UnixStream,
}

impl Forger {
    /// With the server that it sends to.
    fn new() -> (Self, Tls, UnixStream) {
        let node = Ca::new().node(NODE_NAME, 1);
        let mut config = (*node.client_config().unwrap()).clone();
        config.enable_secret_extraction = true;
        let mut pair = pair(&node, &node);
        pair.client = Tls::client(Arc::new(config)).unwrap();
        pair.shake_hands().unwrap();
        let secrets = pair.client.connection.dangerous_extract_secrets().unwrap();
        let (sequence, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("another cipher suite");
        };
        let forger = Forger {
            key: LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap()),
            iv: iv.as_ref().try_into().unwrap(),
            sequence,
            socket: pair.here,
        };
        (forger, pair.server, pair.there)
    }

    /// Sends a record: content, type, padding.
    fn send(&mut self, inner: &[u8]) {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        let [high, low] = (inner.len() as u16 + 16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        let mut body = inner.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut body)
            .unwrap();
        self.socket
            .write_all(&[&header[..], &body].concat())
            .unwrap();
    }
}

#[test]
fn records_that_have_no_place_are_refused_and_the_peer_is_told() {
    // An alert record that is encrypted.
    let told = 2 + OVERHEAD;
    let cases: [(u8, &[u8], &str, usize); 7] = [
        (HANDSHAKE, &[24, 0, 0, 1, 2], "TLS failed", told),
        (HANDSHAKE, &[4, 0, 0, 0], "TLS failed", told),
        (ALERT, &[2], "TLS failed", told),
        (99, &[1; 100], "TLS", told),
        (DATA, &[7; (1 << 14) + 1], "TLS failed", told),
        // Data within a message of the handshake.
        (HANDSHAKE, &[24, 0], "TLS failed", 0),
        (ALERT, &[2, 40], "ended the TLS connection", 0),
    ];
    for (kind, content, reason, told) in cases {
        for room in [10, 1_000] {
            let (mut forger, mut server, mut there) = Forger::new();
            forger.send(&[content, &[kind]].concat());
            forger.send(&[b'x', DATA]);
            let error = read(&mut server, &mut there, room).unwrap_err();
            assert!(
                error.to_string().contains(reason),
                "{kind} {content:?}: {error}"
            );
            let mut wire = [0; 100];
            match forger.socket.read(&mut wire) {
                Ok(count) => assert_eq!(count, told, "{kind}"),
                Err(error) => assert_eq!((error.kind(), told), (io::ErrorKind::WouldBlock, 0)),
            }
        }
    }
}

#[test]
fn records_without_data_come_to_an_end() {
    let key_update = [24, 0, 0, 1, 0, HANDSHAKE];
    let (mut forger, mut server, mut there) = Forger::new();
    for _ in 0..33 {
        forger.send(&[DATA]);
    }
    let error = read(&mut server, &mut there, 10).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    // All in one record.
    let (mut forger, mut server, mut there) = Forger::new();
    forger.send(&[&key_update[..5].repeat(33), &key_update[5..]].concat());
    let error = read(&mut server, &mut there, 10).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[test]
fn what_a_peer_pads_is_the_same_data() {
    let (mut forger, mut server, mut there) = Forger::new();
    for room in [10, 1_000] {
        forger.send(&[b'd', b'a', b't', b'a', DATA, 0, 0, 0]);
        assert_eq!(read(&mut server, &mut there, room).unwrap(), b"data");
    }
}

#[test]
fn tickets_are_not_used() {
    let node = Ca::new().node(NODE_NAME, 1);
    let mut server = (*node.server_config().unwrap()).clone();
    server.send_tls13_tickets = 2;
    server.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    let (client, server) = (node.client_config().unwrap(), Arc::new(server));
    for _ in 0..2 {
        let (here, there) = unix_pair();
        let mut pair = Pair {
            client: Tls::client(Arc::clone(&client)).unwrap(),
            server: Tls::server(Arc::clone(&server)).unwrap(),
            here,
            there,
        };
        pair.shake_hands().unwrap();
        assert!(is_blocked(read(&mut pair.client, &mut pair.here, 10)));
        assert!(!pair.client.has_pending_plaintext());
        let kind = pair.client.connection.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}

#[test]
fn a_peer_that_sends_no_data_does_not_keep_the_thread() {
    /// A peer that sends a record a byte at a time.
    struct Endless {
        bytes: std::vec::IntoIter<u8>,
        reads: usize,
    }
    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            into[0] = self.bytes.next().unwrap();
            Ok(1)
        }
    }
    impl Write for Endless {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            Ok(from.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut pair = open_pair();
    let mut record = vec![DATA, 3, 3, 0x40, 0];
    record.resize(5 + 0x4000, 0);
    let mut endless = Endless {
        bytes: record.into_iter(),
        reads: 0,
    };
    assert!(is_blocked(read(&mut pair.server, &mut endless, 10)));
    assert_eq!(endless.reads, MAX_READS);
    assert!(!pair.server.has_pending_plaintext());
}
