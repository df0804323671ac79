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
    for garbage in [&b"GET / HTTP/1.1\r\n"[..], b"T", &[22, 9], &[0; 40]] {
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
        let error = (0..100)
            .find_map(|_| {
                let _ = here.write(bytes);
                refusal(read(&mut server, &mut there, 1))
            })
            .expect("it is refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert!(server.inbound.len() <= MAX_HANDSHAKE);
    }
}

#[test]
fn random_bytes_in_place_of_any_message_never_panic() {
    let node = Ca::new().node(NODE_NAME, 1);
    let mut random = Random(9);
    for round in 0..500 {
        let mut pair = pair(&node, &node);
        // Each side's messages are changed on their way, at a random place, at a random time.
        let changed = random.below(6);
        for turn in 0..6 {
            let mut wire = vec![0; 1 << 16];
            let _ = pair.client.flush(&mut pair.here);
            if turn == changed
                && let Ok(count) = pair.there.read(&mut wire)
            {
                for _ in 0..1 + random.below(3) {
                    let place = random.below(count);
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
    let length = 5_000 + record::OVERHEAD;
    for bit in [0, 3 * 8, 4 * 8, 5 * 8 + 1, 2_500 * 8, length * 8 - 1] {
        for room in [100, 10_000] {
            let mut pair = open_pair();
            write(&mut pair.client, &mut pair.here, b"before").unwrap();
            write(&mut pair.client, &mut pair.here, &[7; 5_000]).unwrap();
            let mut wire = vec![0; 6 + record::OVERHEAD + length];
            pair.there.read_exact(&mut wire).unwrap();
            wire[6 + record::OVERHEAD + bit / 8] ^= 1 << (bit % 8);
            pair.here.write_all(&wire).unwrap();
            drop(pair.here);
            let before = read(&mut pair.server, &mut pair.there, room).unwrap();
            assert_eq!(before, b"before");
            let error = read(&mut pair.server, &mut pair.there, room).unwrap_err();
            let kinds = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "bit {bit}: {error}");
            let again = read(&mut pair.server, &mut pair.there, room).unwrap_err();
            assert_eq!(again.to_string(), error.to_string());
        }
    }
}

#[test]
fn records_that_have_no_place_are_refused_and_the_peer_is_told() {
    let key_update = [24, 0, 0, 1, 2];
    let cases: [(u8, &[u8], &str); 6] = [
        (record::HANDSHAKE, &key_update, "no place"),
        (record::HANDSHAKE, &[4, 0, 0, 0], "no place"),
        (record::HANDSHAKE, &[24, 0], "no place"),
        (record::ALERT, &[2], "no place"),
        (record::ALERT, &[2, 40], "ended the TLS connection"),
        (99, &[1; 100], "no place"),
    ];
    for (kind, content, reason) in cases {
        for room in [10, 1_000] {
            let mut pair = open_pair();
            let State::Open(session) = &mut pair.client.state else {
                panic!("the handshake is done");
            };
            session.raw_record(kind, content, &mut pair.client.outbound);
            pair.client.flush(&mut pair.here).unwrap();
            let error = read(&mut pair.server, &mut pair.there, room).unwrap_err();
            assert!(
                error.to_string().contains(reason),
                "{kind} {content:?}: {error}"
            );
            let told = refusal(read(&mut pair.client, &mut pair.here, 10));
            assert_eq!(told.is_some(), reason == "no place", "{told:?}");
        }
    }
}

#[test]
fn records_without_data_come_to_an_end() {
    let mut pair = open_pair();
    for _ in 0..100 {
        let State::Open(session) = &mut pair.client.state else {
            panic!("the handshake is done");
        };
        session.raw_record(record::APPLICATION_DATA, &[], &mut pair.client.outbound);
    }
    pair.client.flush(&mut pair.here).unwrap();
    let error = read(&mut pair.server, &mut pair.there, 10).unwrap_err();
    assert!(error.to_string().contains("without data"), "{error}");
}

#[test]
fn what_a_peer_pads_is_the_same_data() {
    let mut pair = open_pair();
    for room in [10, 1_000] {
        let State::Open(session) = &mut pair.client.state else {
            panic!("the handshake is done");
        };
        // The type that `seal` appends is zero, so that it is padding after the type in the data.
        let padded = [b'd', b'a', b't', b'a', record::APPLICATION_DATA, 0, 0];
        session.raw_record(0, &padded, &mut pair.client.outbound);
        pair.client.flush(&mut pair.here).unwrap();
        assert_eq!(
            read(&mut pair.server, &mut pair.there, room).unwrap(),
            b"data"
        );
    }
}
