use super::*;

/// A socket that moves at most so many bytes at once, and sometimes none.
struct PartialIo<S> {
    socket: S,
    random: Random,
    largest: usize,
}

impl<S> PartialIo<S> {
    fn turn(&mut self) -> io::Result<usize> {
        match self.random.index(4) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(1 + self.random.index(self.largest)),
        }
    }
}

impl<S: Read> Read for PartialIo<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.turn()?.min(into.len());
        self.socket.read(&mut into[..count])
    }
}

impl<S: Write> Write for PartialIo<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = self.turn()?.min(from.len());
        self.socket.write(&from[..count])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (a, b)
}

/// Sends `data` in pieces of all sizes to a reader with memory of all sizes, and both close.
fn transfer<S: Read + Write>(
    (sender, out): (&mut Tls, &mut S),
    (receiver, into): (&mut Tls, &mut S),
    data: &[u8],
    random: &mut Random,
) {
    let mut received = vec![0; data.len() + 1];
    let (mut sent, mut got) = (0, 0);
    let mut closed = false;
    for _ in 0..100_000_000_u64 {
        if sent < data.len() {
            let mut rest = &data[sent..];
            let mut pieces = Vec::new();
            for _ in 0..random.index(6) {
                let largest = [0, 1, 40, 5_000, 300_000][random.index(5)];
                let (piece, after) = rest.split_at(random.index(largest + 1).min(rest.len()));
                pieces.push(IoSlice::new(piece));
                rest = after;
            }
            match sender.write_vectored(out, &pieces) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        } else {
            closed = sender.close(out).unwrap();
        }
        let room = [1, 5, 100, 16_384, 16_385, 500_000][random.index(6)];
        let room = room.min(received.len() - got);
        let (first, second) = received[got..][..room].split_at_mut(random.index(room + 1));
        let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        match receiver.read_vectored(into, slices) {
            Ok(0) => {
                assert_eq!((sent, got), (data.len(), data.len()));
                assert!(received[..got] == *data);
                assert!(closed && !sender.wants_write());
                assert!(read(receiver, into, 9).unwrap().is_empty());
                return;
            }
            Ok(count) => got += count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(!receiver.has_pending_plaintext());
            }
        }
    }
    panic!("{got} of {} bytes arrived", data.len());
}

#[test]
fn a_hundred_megabytes_arrive_whole_over_tcp_in_both_directions() {
    let node = Ca::new().node(NODE_NAME, 1);
    let (mut here, mut there) = tcp_pair();
    let mut client = Tls::client(node.client_config().unwrap()).unwrap();
    let mut server = Tls::server(node.server_config().unwrap()).unwrap();
    let mut random = Random::new(1);
    let data = noise(50_000_000, &mut random);
    transfer(
        (&mut client, &mut here),
        (&mut server, &mut there),
        &data,
        &mut random,
    );
    transfer(
        (&mut server, &mut there),
        (&mut client, &mut here),
        &data,
        &mut random,
    );
}

#[test]
fn any_split_of_reads_and_writes_gives_the_same_bytes() {
    let node = Ca::new().node(NODE_NAME, 1);
    for (seed, largest) in [(2, 1), (3, 7), (4, 1_000), (5, 20_000), (6, 300_000)] {
        let (here, there) = unix_pair();
        let partial = |socket, seed| PartialIo {
            socket,
            random: Random::new(seed),
            largest,
        };
        let (mut here, mut there) = (partial(here, seed), partial(there, seed * 100));
        let mut client = Tls::client(node.client_config().unwrap()).unwrap();
        let mut server = Tls::server(node.server_config().unwrap()).unwrap();
        let mut random = Random::new(seed);
        let data = noise((largest * 5_000).clamp(20_000, 3_000_000), &mut random);
        transfer(
            (&mut client, &mut here),
            (&mut server, &mut there),
            &data,
            &mut random,
        );
    }
}

/// A client whose keys serve for so many records.
fn short_lived_keys(node: &TlsOptions, records: u64) -> Arc<ClientConfig> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().unwrap();
    provider.cipher_suites = vec![rustls::SupportedCipherSuite::Tls13(Box::leak(Box::new(
        rustls::Tls13CipherSuite {
            common: rustls::crypto::CipherSuiteCommon {
                suite: suite.common.suite,
                hash_provider: suite.common.hash_provider,
                confidentiality_limit: records,
            },
            hkdf_provider: suite.hkdf_provider,
            aead_alg: suite.aead_alg,
            quic: None,
        },
    )))];
    node.client_config_with(Arc::new(provider)).unwrap()
}

/// Bytes of a record that changes keys.
const KEY_UPDATE: usize = 5 + OVERHEAD;

#[test]
fn keys_change_on_the_way_and_on_request() {
    let node = Ca::new().node(NODE_NAME, 1);
    let mut pair = pair(&node, &node);
    pair.client = Tls::client(short_lived_keys(&node, 3)).unwrap();
    pair.shake_hands().unwrap();
    let mut wire = vec![0; 1 << 16];
    let mut expected = 0;
    for number in 0..6 {
        write(&mut pair.client, &mut pair.here, &[number]).unwrap();
        expected += 1 + OVERHEAD;
    }
    let count = pair.there.read(&mut wire).unwrap();
    assert!(count >= expected + 2 * KEY_UPDATE, "{count} {expected}");
    assert_eq!((count - expected) % KEY_UPDATE, 0);
    pair.here.write_all(&wire[..count]).unwrap();
    let mut got = Vec::new();
    while got.len() < 6 {
        got.extend(read(&mut pair.server, &mut pair.there, 100).unwrap());
    }
    assert_eq!(got, [0, 1, 2, 3, 4, 5]);

    // The server was asked for new keys, too: they go with its next data.
    write(&mut pair.server, &mut pair.there, b"under the new key").unwrap();
    let count = pair.here.read(&mut wire).unwrap();
    assert_eq!(count, KEY_UPDATE + b"under the new key".len() + OVERHEAD);
    pair.there.write_all(&wire[..count]).unwrap();
    assert_eq!(
        read(&mut pair.client, &mut pair.here, 100).unwrap(),
        b"under the new key"
    );

    let mut random = Random::new(7);
    let data = noise(2_000_000, &mut random);
    transfer(
        (&mut pair.client, &mut pair.here),
        (&mut pair.server, &mut pair.there),
        &data,
        &mut random,
    );
}

#[test]
fn small_pieces_share_a_record() {
    let mut pair = open_pair();
    let pieces = [IoSlice::new(&[7; 100]); 50];
    let count = pair.client.write_vectored(&mut pair.here, &pieces).unwrap();
    assert_eq!(count, 5_000);
    let mut wire = vec![0; 100_000];
    let count = pair.there.read(&mut wire).unwrap();
    assert_eq!(count, 5_000 + OVERHEAD);
}

#[test]
fn a_reader_that_stops_bounds_the_memory_of_the_writer() {
    let mut pair = open_pair();
    let data = vec![1; 1 << 20];
    let mut taken = 0;
    for _ in 0..1_000 {
        match write(&mut pair.client, &mut pair.here, &data) {
            Ok(count) => taken += count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(pair.client.wants_write());
                let state = pair.client.connection.process_new_packets().unwrap();
                assert!(state.tls_bytes_to_write() <= MAX_BUFFER + 8 * OVERHEAD);
                assert!(!pair.client.flush(&mut pair.here).unwrap());
                // And all of it arrives when the reader goes on.
                let mut got = 0;
                while got < taken {
                    pair.client.flush(&mut pair.here).unwrap();
                    got += read(&mut pair.server, &mut pair.there, 1 << 20)
                        .unwrap()
                        .len();
                }
                assert_eq!(got, taken);
                return;
            }
        }
    }
    panic!("the socket never fills");
}

#[test]
fn a_reader_that_stops_bounds_its_own_memory() {
    let mut pair = open_pair();
    let data = vec![1; MAX_BUFFER];
    let taken = write(&mut pair.client, &mut pair.here, &data).unwrap();
    let mut got = 0;
    while got < taken {
        got += read(&mut pair.server, &mut pair.there, 100).unwrap().len();
        let state = pair.server.connection.process_new_packets().unwrap();
        let kept = state.plaintext_bytes_to_read();
        assert!(kept <= 1 << 15, "{kept}");
        // What is kept is not lost where nobody hears of the socket any more.
        assert_eq!(pair.server.has_pending_plaintext(), kept > 0);
    }
    assert_eq!(got, taken);
}

#[test]
fn after_closing_one_side_the_other_may_go_on() {
    let mut pair = open_pair();
    write(&mut pair.client, &mut pair.here, b"last words").unwrap();
    assert!(pair.client.close(&mut pair.here).unwrap());
    assert!(pair.client.close(&mut pair.here).unwrap());
    let late = write(&mut pair.client, &mut pair.here, b"x").unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(read(&mut pair.server, &mut pair.there, 4).unwrap(), b"last");
    assert!(pair.server.has_pending_plaintext());
    assert_eq!(
        read(&mut pair.server, &mut pair.there, 99).unwrap(),
        b" words"
    );
    assert!(
        read(&mut pair.server, &mut pair.there, 99)
            .unwrap()
            .is_empty()
    );
    write(&mut pair.server, &mut pair.there, b"answer").unwrap();
    assert_eq!(
        read(&mut pair.client, &mut pair.here, 99).unwrap(),
        b"answer"
    );
    assert!(pair.server.close(&mut pair.there).unwrap());
    drop(pair.there);
    assert!(
        read(&mut pair.client, &mut pair.here, 99)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn blocking_sockets_work_too() {
    let node = Ca::new().node(NODE_NAME, 1);
    let (mut here, mut there) = UnixStream::pair().unwrap();
    for socket in [&here, &there] {
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
    }
    let mut server = Tls::server(node.server_config().unwrap()).unwrap();
    let answering = std::thread::spawn(move || {
        let question = read(&mut server, &mut there, 100).unwrap();
        write(&mut server, &mut there, &question).unwrap();
        server.close(&mut there).unwrap();
    });
    let mut client = Tls::client(node.client_config().unwrap()).unwrap();
    write(&mut client, &mut here, b"echo").unwrap();
    assert_eq!(read(&mut client, &mut here, 100).unwrap(), b"echo");
    assert!(read(&mut client, &mut here, 100).unwrap().is_empty());
    answering.join().unwrap();
}
